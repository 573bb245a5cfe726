package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/mkfs"
	"github.com/atoll-run/atoll/internal/image/stack"
	"github.com/atoll-run/atoll/sandbox"
)

// Unpack writes the files of the image into dir, which must be empty or
// missing, for engines that cannot use EROFS files. All files are created
// through an os.Root, so nothing is written outside dir. Owners are set when
// running as root. Setuid and setgid bits are dropped, because they would take
// effect on this machine. FIFOs are left out. On an error, the caller removes
// what was written.
func (i *Image) Unpack(ctx context.Context, dir string) error {
	tree, closeTree, err := i.tree()
	if err != nil {
		return err
	}
	defer closeTree()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return internal("image.unpack", dir, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return internal("image.unpack", dir, err)
	}
	defer root.Close()
	if there, err := fs.ReadDir(root.FS(), "."); err != nil || len(there) > 0 {
		return fail(sandbox.CodeConflict, "image.unpack", dir, "give an empty directory", "the directory is not empty")
	}
	u := &unpacker{ctx: ctx, tree: tree, root: root, links: map[*mkfs.Node]string{}, chown: os.Geteuid() == 0}
	if err := u.run(); err != nil {
		return classify("image.unpack", dir, err)
	}
	return nil
}

// tree opens the layers of the image. done closes them.
func (i *Image) tree() (_ *stack.Tree, done func(), err error) {
	files, err := i.OpenLayers()
	if err != nil {
		return nil, nil, err
	}
	tree := stack.New()
	for _, f := range slices.Backward(files) {
		if err := tree.Add(f); err != nil {
			closeFiles(files)
			return nil, nil, internal("image.unpack", i.Ref, err)
		}
	}
	return tree, func() { closeFiles(files) }, nil
}

// unpacker copies an image into a directory.
type unpacker struct {
	ctx   context.Context
	tree  *stack.Tree
	root  *os.Root
	links map[*mkfs.Node]string // first name of files
	dirs  []unpackedDir
	chown bool
}

// unpackedDir is a directory whose mode and time are set at the end, after its
// content has been created.
type unpackedDir struct {
	name string
	node *mkfs.Node
}

func (u *unpacker) run() error {
	if err := u.file(".", u.tree.Root); err != nil {
		return err
	}
	for n := len(u.dirs) - 1; n >= 0; n-- {
		if err := u.attributes(u.dirs[n].name, u.dirs[n].node); err != nil {
			return err
		}
	}
	return nil
}

// file creates a file and everything below it.
func (u *unpacker) file(name string, n *mkfs.Node) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	switch {
	case n.IsDir():
		return u.dir(name, n)
	case n.IsSymlink():
		if err := u.root.Symlink(n.Target, name); err != nil {
			return err
		}
		return u.owner(name, n)
	case n.IsRegular():
		return u.regular(name, n)
	}
	return nil
}

func (u *unpacker) dir(name string, n *mkfs.Node) error {
	u.dirs = append(u.dirs, unpackedDir{name, n})
	if name != "." {
		if err := u.root.Mkdir(name, 0o700); err != nil {
			return err
		}
	}
	for _, base := range slices.Sorted(maps.Keys(n.Children)) {
		if err := u.file(path.Join(name, base), n.Children[base]); err != nil {
			return err
		}
	}
	return nil
}

// regular creates a regular file, or a hard link to it.
func (u *unpacker) regular(name string, n *mkfs.Node) error {
	if first, ok := u.links[n]; ok {
		return u.root.Link(first, name)
	}
	out, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(u.content(out, n), out.Close()); err != nil {
		return err
	}
	u.links[n] = name
	return u.attributes(name, n)
}

func (u *unpacker) content(out io.Writer, n *mkfs.Node) error {
	if n.Size == 0 {
		return nil
	}
	in, err := u.tree.Open(n)
	if err != nil {
		return err
	}
	defer in.Close()
	copied, err := io.Copy(out, in)
	if err == nil && copied != n.Size {
		err = fmt.Errorf("%d bytes of %d", copied, n.Size)
	}
	return err
}

// owner sets the owner of a file without following a link.
func (u *unpacker) owner(name string, n *mkfs.Node) error {
	if !u.chown {
		return nil
	}
	return u.root.Lchown(name, int(n.UID), int(n.GID))
}

// attributes sets owner, mode and time of a file or directory.
func (u *unpacker) attributes(name string, n *mkfs.Node) error {
	if err := u.owner(name, n); err != nil {
		return err
	}
	mode := fs.FileMode(n.Mode).Perm()
	if n.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	if err := u.root.Chmod(name, mode); err != nil {
		return err
	}
	mtime := time.Unix(n.MTime, int64(n.MTimeNsec))
	err := u.root.Chtimes(name, mtime, mtime)
	if errors.Is(err, unix.EINVAL) { // the file system cannot store the time
		return nil
	}
	return err
}
