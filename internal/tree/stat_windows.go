package tree

import "io/fs"

// owner returns root: files have no numeric owner here.
func owner(fs.FileInfo) (uid, gid int) { return 0, 0 }

// stored returns the size of a file: holes are not detected here.
func stored(info fs.FileInfo) int64 { return info.Size() }

// identity identifies a file.
type identity struct{}

// identify reports that a file has one name: others are not detected here.
func identify(fs.FileInfo) (id identity, several bool) { return id, false }
