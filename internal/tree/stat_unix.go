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
