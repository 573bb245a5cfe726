// Package stack reads the layers of an image as one tree of files, and computes
// the difference between trees.
//
// A layer is an EROFS image created by the store. Layers are combined as in
// overlayfs: a directory is merged with the one below and has its own
// attributes, and other files replace files with the same name. A character
// device 0/0 is a whiteout: it removes the name. Layers have no opaque
// directories, which need extended attributes, but a whiteout for each name
// instead. A hard link never refers to another layer.
package stack

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/mkfs"
)

// Tree is the merged tree of several layers, as a sandbox sees it. It is not
// safe for concurrent use.
type Tree struct {
	Root *mkfs.Node

	content map[*mkfs.Node]place // of regular files that are not empty
}

// place is the position of a file in a layer.
type place struct {
	layer fs.FS
	name  string
}

// New returns an empty tree.
func New() *Tree {
	return &Tree{
		Root:    &mkfs.Node{Mode: unix.S_IFDIR | 0o755, Children: map[string]*mkfs.Node{}},
		content: map[*mkfs.Node]place{},
	}
}

// Add adds a layer on top. The layer must stay readable for the content of its
// files.
func (t *Tree) Add(layer io.ReaderAt) error {
	img, err := erofs.Open(layer)
	if err != nil {
		return err
	}
	r := &reader{tree: t, layer: img, links: map[int64]*mkfs.Node{}}
	fi, err := fs.Lstat(img, ".")
	if err != nil {
		return err
	}
	if err := r.attributes(t.Root, fi); err != nil {
		return err
	}
	return r.dir(t.Root, ".")
}

// Open returns the content of a regular file in one of the layers.
func (t *Tree) Open(n *mkfs.Node) (io.ReadCloser, error) {
	p, ok := t.content[n]
	if !ok {
		return nil, errors.New("no layer has the file")
	}
	return p.layer.Open(p.name)
}

// Has reports whether a regular file's content is in one of the layers.
func (t *Tree) Has(n *mkfs.Node) bool {
	_, ok := t.content[n]
	return ok
}

// reader adds one layer to a tree.
type reader struct {
	tree  *Tree
	layer fs.FS
	links map[int64]*mkfs.Node // files with several names, by inode
}

// dir merges a directory of the layer into to.
func (r *reader) dir(to *mkfs.Node, name string) error {
	entries, err := fs.ReadDir(r.layer, name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if err := r.entry(to, path.Join(name, e.Name()), e.Name(), fi); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) entry(dir *mkfs.Node, name, base string, fi fs.FileInfo) error {
	switch fi.Mode().Type() {
	case fs.ModeDir:
		n := dir.Children[base]
		if n == nil || !n.IsDir() {
			n = &mkfs.Node{Children: map[string]*mkfs.Node{}}
			dir.Children[base] = n
		}
		if err := r.attributes(n, fi); err != nil {
			return err
		}
		return r.dir(n, name)
	case fs.ModeDevice | fs.ModeCharDevice:
		delete(dir.Children, base)
		return nil
	}
	n, err := r.file(name, fi)
	if err != nil {
		return err
	}
	dir.Children[base] = n
	return nil
}

// file returns the node of anything except a directory.
func (r *reader) file(name string, fi fs.FileInfo) (*mkfs.Node, error) {
	st, ok := fi.Sys().(*erofs.Stat)
	if !ok {
		return nil, errNoStat
	}
	if n := r.links[st.Ino]; n != nil {
		return n, nil
	}
	n := &mkfs.Node{}
	if err := r.attributes(n, fi); err != nil {
		return nil, err
	}
	switch {
	case n.IsSymlink():
		target, err := fs.ReadLink(r.layer, name)
		if err != nil {
			return nil, err
		}
		n.Target = target
	case n.IsRegular() && st.Size > 0:
		n.Size = st.Size
		r.tree.content[n] = place{r.layer, name}
	}
	if st.Nlink > 1 {
		r.links[st.Ino] = n
	}
	return n, nil
}

var errNoStat = errors.New("the layer contains no owners")

// attributes sets the attributes of a node from a file of the layer.
func (r *reader) attributes(n *mkfs.Node, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*erofs.Stat)
	if !ok {
		return errNoStat
	}
	typ, err := fileType(st.Mode)
	if err != nil {
		return fmt.Errorf("%s: %w", fi.Name(), err)
	}
	n.Mode, n.UID, n.GID = typ|ModeBits(st.Mode), st.UID, st.GID
	n.MTime, n.MTimeNsec = int64(st.Mtime), st.MtimeNs //nolint:gosec // limited when the image was written
	return nil
}

func fileType(m fs.FileMode) (uint16, error) {
	switch m.Type() {
	case 0:
		return unix.S_IFREG, nil
	case fs.ModeDir:
		return unix.S_IFDIR, nil
	case fs.ModeSymlink:
		return unix.S_IFLNK, nil
	case fs.ModeNamedPipe:
		return unix.S_IFIFO, nil
	}
	return 0, fmt.Errorf("no layer has files of type %v", m.Type())
}

// ModeBits returns the permission, set-id and sticky bits of a mode, as for
// chmod.
func ModeBits(m fs.FileMode) uint16 {
	bits := uint16(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= unix.S_ISUID
	}
	if m&fs.ModeSetgid != 0 {
		bits |= unix.S_ISGID
	}
	if m&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return bits
}

// Directories returns a copy of a tree with new nodes for directories and the
// same nodes for files.
func Directories(root *mkfs.Node) *mkfs.Node {
	n := *root
	n.Children = maps.Clone(root.Children)
	for name, c := range n.Children {
		if c.IsDir() {
			n.Children[name] = Directories(c)
		}
	}
	return &n
}
