package tree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/sparse"
	"github.com/atoll-run/atoll/sandbox"
)

// maxSkipped is the maximum number of skipped members returned.
const maxSkipped = 20

// Unpack unpacks a tar stream below the directory dir. The first element of
// every member's path is replaced by name; with the name "." it is dir itself,
// which must be a directory in the stream and keeps its mode. It returns members
// that were skipped because they are neither files nor directories nor links; if
// the first member, which is what was asked for, is one, it is CodeUnsupported.
// Existing files are replaced, but neither a directory by something else nor the
// reverse. No link is followed, neither an existing one nor one from the
// stream. A member outside the destination is an error; members before it stay.
func Unpack(ctx context.Context, r io.Reader, dir, name string) (skipped []string, err error) {
	return unpack(ctx, r, dir, name, false)
}

// UnpackOwned is Unpack with the numeric owners, if this process may change
// owners.
func UnpackOwned(ctx context.Context, r io.Reader, dir, name string) (skipped []string, err error) {
	return unpack(ctx, r, dir, name, os.Geteuid() == 0)
}

func unpack(ctx context.Context, r io.Reader, dir, name string, owners bool) (skipped []string, err error) {
	if name == "" || name == ".." || strings.ContainsRune(name, filepath.Separator) {
		return nil, fmt.Errorf("%q cannot be the name of a file", name)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	u := &unpacker{ctx: ctx, root: root, name: name, owners: owners}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return u.skipped, u.finish()
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = u.member(tr, h)
		}
		if err != nil {
			return u.skipped, errors.Join(err, u.finish())
		}
	}
}

// maxDepth is the maximum nesting of directories. The cost of creating them
// grows with its square.
const maxDepth = 1000

type unpacker struct {
	ctx     context.Context // of the call
	root    *os.Root
	name    string
	owners  bool      // set owners
	dirs    []dirMode // modes are set last, so that the directories are writable
	skipped []string
	begun   bool // a member has come
	whole   bool // members are below the root of the sandbox: no first element stands for what was copied
}

type dirMode struct {
	path    string
	mode    fs.FileMode
	modTime time.Time
}

func (u *unpacker) member(tr *tar.Reader, h *tar.Header) error {
	if !u.begun && strings.TrimSuffix(h.Name, "/") == "." { // the root itself was exported
		u.whole = true
	}
	p, err := rename(h.Name, u.name, u.whole)
	if err != nil {
		return err
	}
	if strings.Count(p, string(filepath.Separator)) > maxDepth {
		return hostile(h.Name, "the sandbox sent a member that is too deep")
	}
	if p == "." {
		if h.Typeflag != tar.TypeDir {
			return conflict(h.Name, "is not a directory")
		}
		return nil
	}
	if err := u.parents(p); err != nil {
		return err
	}
	first := !u.begun
	u.begun = true
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(p, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(p, h, tr)
	case tar.TypeSymlink:
		if err := u.clear(p); err != nil {
			return err
		}
		return errors.Join(u.root.Symlink(h.Linkname, p), u.own(p, h))
	case tar.TypeLink:
		return u.link(p, h)
	}
	if first {
		return special(h.Name)
	}
	if len(u.skipped) < maxSkipped {
		u.skipped = append(u.skipped, h.Name)
	}
	return nil
}

// parents creates missing parents of p. It refuses a link among them, which
// would lead elsewhere.
func (u *unpacker) parents(p string) error {
	parent := filepath.Dir(p)
	if parent == "." {
		return nil
	}
	for i := range len(parent) + 1 {
		if i < len(parent) && parent[i] != filepath.Separator {
			continue
		}
		if err := u.plainDir(parent[:i]); err != nil {
			return err
		}
	}
	return nil
}

// plainDir makes sure that p is a directory and not a symbolic link.
func (u *unpacker) plainDir(p string) error {
	info, err := u.root.Lstat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return u.root.Mkdir(p, 0o755)
	case err != nil:
		return err
	case !info.IsDir():
		return hostile(p, "something that is not a directory is in the way")
	}
	return nil
}

func (u *unpacker) dir(p string, h *tar.Header) error {
	if info, err := u.root.Lstat(p); err == nil && !info.IsDir() {
		return conflict(p, "a directory cannot replace a file")
	}
	if err := u.plainDir(p); err != nil {
		return err
	}
	// Writable for us until its content has been written.
	if err := u.root.Chmod(p, 0o700); err != nil {
		return err
	}
	u.dirs = append(u.dirs, dirMode{p, h.FileInfo().Mode() & permissions, h.ModTime})
	return u.own(p, h)
}

// own sets the owner, if enabled.
func (u *unpacker) own(p string, h *tar.Header) error {
	if !u.owners {
		return nil
	}
	return u.root.Lchown(p, h.Uid, h.Gid)
}

// conflict is the error for something that is in the way.
func conflict(name, message string) error {
	return &sandbox.Error{Code: sandbox.CodeConflict, Op: "copy.out", Subject: name, Message: message}
}

// clear removes p, unless it is a directory.
func (u *unpacker) clear(p string) error {
	if info, err := u.root.Lstat(p); err == nil && info.IsDir() {
		return conflict(p, "a file cannot replace a directory")
	}
	err := u.root.Remove(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (u *unpacker) file(p string, h *tar.Header, r io.Reader) error {
	if err := u.clear(p); err != nil {
		return err
	}
	f, err := u.root.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if sparse.Is(h) {
		err = sparse.Copy(f, r, h.Size, u.ctx.Err)
	} else {
		_, err = io.Copy(f, r)
	}
	if err == nil {
		err = f.Chmod(h.FileInfo().Mode() & permissions)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = u.own(p, h)
	}
	if err != nil {
		return err
	}
	return u.root.Chtimes(p, time.Time{}, h.ModTime)
}

// link creates a hard link to an earlier member. Its target is renamed like any
// member, and must be a file, not a link.
func (u *unpacker) link(p string, h *tar.Header) error {
	target, err := rename(h.Linkname, u.name, u.whole)
	if err != nil {
		return err
	}
	if strings.Count(target, string(filepath.Separator)) > maxDepth {
		return hostile(h.Name, "the sandbox sent a link to a member that is too deep")
	}
	if err := u.parents(target); err != nil {
		return err
	}
	info, err := u.root.Lstat(target)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return hostile(h.Name, "the sandbox sent a link to something that is not a file")
	}
	if err := u.clear(p); err != nil {
		return err
	}
	return u.root.Link(target, p)
}

// finish sets modes and times of directories, deepest first.
func (u *unpacker) finish() error {
	var failed error
	for _, d := range slices.Backward(u.dirs) {
		// A later member may have replaced it by a link, which must not be followed.
		if info, err := u.root.Lstat(d.path); err != nil || !info.IsDir() {
			continue
		}
		err := u.root.Chmod(d.path, d.mode)
		if err == nil {
			err = u.root.Chtimes(d.path, time.Time{}, d.modTime)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
