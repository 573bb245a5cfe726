//go:build unix

package tree

import (
	"io/fs"
	"syscall"
)

// owner returns the numeric owner and group of a file, or root's if unknown.
func owner(info fs.FileInfo) (uid, gid int) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), int(st.Gid)
	}
	return 0, 0
}

// stored returns the number of bytes on disk. If it is less than the size, the
// file has holes.
func stored(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// identity identifies a file among all files of the machine.
type identity struct{ dev, ino uint64 }

// identify returns the identity of a file, and whether it has several names.
func identify(info fs.FileInfo) (id identity, several bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return id, false
	}
	return identity{uint64(st.Dev), st.Ino}, st.Nlink > 1
}
