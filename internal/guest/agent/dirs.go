package agent

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// mkdir creates a directory.
func (s *fileServer) mkdir(d *wire.Decoder) error {
	p, mode, spec, parents := d.String(), uint32(d.Uint())&0o7777, d.String(), d.Bool()
	if err := d.End(); err != nil {
		return err
	}
	own, err := s.ownerOf(spec)
	if err != nil {
		return err
	}
	if mode == 0 {
		mode = 0o755
	}
	if parents {
		return about(p, s.makeDirs(p, mode, own))
	}
	rel, err := s.root.relative(path.Clean(p))
	if err != nil {
		return about(p, err)
	}
	return about(p, s.root.makeDir(rel, mode, own))
}

// makeDirs creates a directory with its missing parents. It succeeds if the
// directory exists.
func (s *fileServer) makeDirs(p string, mode uint32, own owner) error {
	rel, err := s.root.relative(path.Clean(p))
	if err != nil {
		return err
	}
	return s.root.makeDirs(rel, mode, own)
}

func (w *walker) makeDirs(rel string, mode uint32, own owner) error {
	fd, err := w.openDirBelow(rel)
	switch err {
	case nil: // usually everything exists
		return unix.Close(fd)
	case unix.ENOENT:
	case unix.ENOTDIR:
		return unix.EEXIST
	default:
		return err
	}
	parts := elements(rel)
	for n := range parts {
		m := uint32(0o755)
		if n == len(parts)-1 {
			m = mode
		}
		if err := w.makeDir(strings.Join(parts[:n+1], "/"), m, own); err != nil && err != unix.EEXIST {
			return err
		}
	}
	if fd, err = w.openDirBelow(rel); err != nil {
		if err == unix.ENOTDIR {
			err = unix.EEXIST
		}
		return err
	}
	return unix.Close(fd)
}

// openDirBelow opens a directory as a place and follows links.
func (w *walker) openDirBelow(rel string) (int, error) {
	at, err := w.findBelow(rel, true)
	if err != nil {
		return -1, err
	}
	defer at.close()
	return unix.Openat(at.dir, at.name, openDir, 0)
}

// makeDir creates one directory.
func (w *walker) makeDir(rel string, mode uint32, own owner) error {
	at, err := w.findBelow(rel, true)
	if err != nil {
		return err
	}
	defer at.close()
	if at.name == "." {
		return unix.EEXIST
	}
	if err := unix.Mkdirat(at.dir, at.name, 0o700); err != nil {
		return err
	}
	if err := setDir(at.dir, at.name, mode, own); err != nil {
		_ = unix.Unlinkat(at.dir, at.name, unix.AT_REMOVEDIR)
		return err
	}
	return nil
}

// setDir sets a directory's owner and mode. It uses a descriptor because the
// name could have become a link.
func setDir(dir int, name string, mode uint32, own owner) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return setFile(fd, mode, own)
}

// setFile sets an open file's owner and then its mode, because changing the
// owner clears set-id bits.
func setFile(fd int, mode uint32, own owner) error {
	if own != unchanged {
		if err := unix.Fchown(fd, own.uid, own.gid); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, mode)
}

// remove removes a file or a tree.
func (s *fileServer) remove(d *wire.Decoder) error {
	p, recursive := d.String(), d.Bool()
	if err := d.End(); err != nil {
		return err
	}
	if path.Clean(p) == "/" {
		return fail(sandbox.CodeInvalid, p, "the root cannot be removed")
	}
	at, err := s.root.find(p, false)
	if err != nil {
		return about(p, err)
	}
	defer at.close()
	if at.name == "." {
		return fail(sandbox.CodeInvalid, p, "the root cannot be removed")
	}
	err = unix.Unlinkat(at.dir, at.name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		return about(p, err)
	}
	if !recursive || err == unix.EPERM && !isDir(at.dir, at.name) {
		err = unix.Unlinkat(at.dir, at.name, unix.AT_REMOVEDIR)
		if err == unix.ENOTDIR {
			err = unix.EPERM
		}
		return about(p, err)
	}
	return about(p, removeTree(at.dir, at.name))
}

func isDir(dir int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// removeTree removes a directory and everything in it. It also removes entries
// that are added meanwhile, up to a limit.
func removeTree(dir int, name string) error {
	var err error
	for range 5 {
		err = emptyTree(dir, name)
		if err == nil {
			err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		}
		if err != unix.ENOTEMPTY {
			return err
		}
	}
	return err
}

func emptyTree(dir int, name string) error {
	t, err := openTree(dir, name)
	if err != nil {
		return err
	}
	defer t.close()
	t.leave = func(dir int, name string) error {
		return ignoreGone(unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
	}
	return t.walk(func(dir int, name string, _ int) (bool, error) {
		err := unix.Unlinkat(dir, name, 0)
		if err == unix.EISDIR || err == unix.EPERM && isDir(dir, name) {
			return true, nil
		}
		return false, ignoreGone(err)
	})
}

func ignoreGone(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// move renames a file or directory.
func (s *fileServer) move(d *wire.Decoder) error {
	from, to, overwrite := d.String(), d.String(), d.Bool()
	if err := d.End(); err != nil {
		return err
	}
	a, err := s.root.find(from, false)
	if err != nil {
		return about(from, err)
	}
	defer a.close()
	b, err := s.root.find(to, false)
	if err != nil {
		return about(to, err)
	}
	defer b.close()
	if a.name == "." {
		return fail(sandbox.CodeInvalid, from, "the root cannot be moved")
	}
	var st unix.Stat_t
	if err := unix.Fstatat(a.dir, a.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return about(from, err)
	}
	if b.name == "." {
		return about(to, unix.EEXIST)
	}
	if !overwrite {
		return about(to, renameNew(a, b))
	}
	return about(to, renameOver(a, b))
}

// renameNew renames to a name that must not exist.
func renameNew(a, b place) error {
	err := unix.Renameat2(a.dir, a.name, b.dir, b.name, unix.RENAME_NOREPLACE)
	if err != unix.ENOSYS && err != unix.EINVAL {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(b.dir, b.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != unix.ENOENT {
		if err == nil {
			err = unix.EEXIST
		}
		return err
	}
	if isDir(a.dir, a.name) {
		return unix.Renameat(a.dir, a.name, b.dir, b.name)
	}
	// A kernel without that flag can still do it for files, because link(2) never
	// replaces anything.
	if err := unix.Linkat(a.dir, a.name, b.dir, b.name, 0); err != nil {
		if err == unix.EPERM || err == unix.ENOTSUP || err == unix.ENOSYS {
			return unix.Renameat(a.dir, a.name, b.dir, b.name)
		}
		return err
	}
	return unix.Unlinkat(a.dir, a.name, 0)
}

// renameOver renames and replaces files, but never a directory.
func renameOver(a, b place) error {
	if isDir(b.dir, b.name) {
		return unix.EEXIST
	}
	err := unix.Renameat(a.dir, a.name, b.dir, b.name)
	switch err {
	case unix.EISDIR:
		return unix.EEXIST
	case unix.ENOTDIR: // rename(2) does not replace a file with a directory
		if err := unix.Unlinkat(b.dir, b.name, 0); err != nil {
			return err
		}
		return unix.Renameat(a.dir, a.name, b.dir, b.name)
	}
	return err
}
