package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// Unpack writes the files of the image into dir, which must be empty or
// missing, for engines that cannot use the EROFS file. It makes every file
// through an os.Root, so nothing is written outside dir whatever the image
// holds. Owners are kept when running as root. Setuid and setgid bits are not:
// such a file would have its rights on this machine. FIFOs are left out. When
// it fails, what was written is left for the caller to remove.
func (i *Image) Unpack(ctx context.Context, dir string) error {
	f, err := i.OpenRootfs()
	if err != nil {
		return err
	}
	defer f.Close()
	img, err := erofs.Open(f)
	if err != nil {
		return internal("image.unpack", i.Ref, err)
	}
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
	u := &unpacker{ctx: ctx, img: img, root: root, links: map[int64]string{}, chown: os.Geteuid() == 0}
	if err := u.run(); err != nil {
		return classify("image.unpack", dir, err)
	}
	return nil
}

// unpacker copies an image into a directory.
type unpacker struct {
	ctx   context.Context
	img   fs.FS
	root  *os.Root
	links map[int64]string // first name of files with several, by inode
	dirs  []unpackedDir
	chown bool
}

// unpackedDir is a directory whose mode and time are set at the end, when
// nothing more is made in it.
type unpackedDir struct {
	name string
	st   *erofs.Stat
}

func (u *unpacker) run() error {
	err := fs.WalkDir(u.img, ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := u.ctx.Err(); err != nil {
			return err
		}
		fi, err := fs.Lstat(u.img, name)
		if err != nil {
			return err
		}
		st, ok := fi.Sys().(*erofs.Stat)
		if !ok {
			return errors.New("the image tells no owners")
		}
		return u.file(name, st)
	})
	if err != nil {
		return err
	}
	for n := len(u.dirs) - 1; n >= 0; n-- {
		if err := u.attributes(u.dirs[n].name, u.dirs[n].st); err != nil {
			return err
		}
	}
	return nil
}

// file makes one file.
func (u *unpacker) file(name string, st *erofs.Stat) error {
	switch st.Mode.Type() {
	case fs.ModeDir:
		u.dirs = append(u.dirs, unpackedDir{name, st})
		if name == "." {
			return nil
		}
		return u.root.Mkdir(name, 0o700)
	case fs.ModeSymlink:
		target, err := fs.ReadLink(u.img, name)
		if err != nil {
			return err
		}
		if err := u.root.Symlink(target, name); err != nil {
			return err
		}
		return u.owner(name, st)
	case 0:
		return u.regular(name, st)
	}
	return nil
}

// regular makes a regular file, or a hard link to it.
func (u *unpacker) regular(name string, st *erofs.Stat) error {
	if first, ok := u.links[st.Ino]; ok {
		return u.root.Link(first, name)
	}
	in, err := u.img.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil && n != st.Size {
		err = fmt.Errorf("%d bytes of %d", n, st.Size)
	}
	if err != nil {
		return err
	}
	if st.Nlink > 1 {
		u.links[st.Ino] = name
	}
	return u.attributes(name, st)
}

// owner sets the owner of a file, not following a link.
func (u *unpacker) owner(name string, st *erofs.Stat) error {
	if !u.chown {
		return nil
	}
	return u.root.Lchown(name, int(st.UID), int(st.GID))
}

// attributes sets owner, mode and time of a file or directory.
func (u *unpacker) attributes(name string, st *erofs.Stat) error {
	if err := u.owner(name, st); err != nil {
		return err
	}
	mode := st.Mode.Perm()
	if st.Mode&fs.ModeSticky != 0 {
		mode |= fs.ModeSticky
	}
	if err := u.root.Chmod(name, mode); err != nil {
		return err
	}
	mtime := time.Unix(int64(st.Mtime), int64(st.MtimeNs)) //nolint:gosec // bounded when the image was written
	err := u.root.Chtimes(name, mtime, mtime)
	if errors.Is(err, unix.EINVAL) { // the file system cannot hold the time
		return nil
	}
	return err
}
