package agent

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// walker resolves paths below a directory, one element at a time, following
// symbolic links itself. Every element is opened relative to the one before and
// never as a link, so that nobody who changes the tree meanwhile can lead the
// walk out of the directory. It needs no openat2, which not every kernel has.
type walker struct {
	fd   int
	path string       // of the directory: what absolute links are relative to
	code sandbox.Code // of the error when a path leads out
	// alias, if set, returns the name that a directory really has for another.
	alias func(dir int, name string) string
}

// place is an entry of a directory, existing or not. name is "." for the
// directory that the walk began at.
type place struct {
	dir  int // to be closed
	name string
	path string // absolute, without links but for a last one
}

func (p place) close() { unix.Close(p.dir) }

const (
	maxLinks = 40
	openDir  = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// walk is one resolution.
type walk struct {
	w       *walker
	fd      int
	done    []string // elements resolved so far, none of them a link
	pending []string
	links   int
}

// find resolves an absolute path. A link in the last element is followed if
// follow is set.
func (w *walker) find(p string, follow bool) (place, error) {
	if p == "" || p[0] != '/' || strings.IndexByte(p, 0) >= 0 {
		return place{}, fail(sandbox.CodeInvalid, "", "not an absolute path")
	}
	rel, err := w.relative(path.Clean(p))
	if err != nil {
		return place{}, err
	}
	return w.findBelow(rel, follow)
}

// findBelow resolves a path relative to the walker's directory.
func (w *walker) findBelow(rel string, follow bool) (place, error) {
	fd, err := unix.FcntlInt(uintptr(w.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return place{}, err
	}
	k := &walk{w: w, fd: fd, pending: elements(rel)}
	name, err := k.run(follow)
	if err != nil {
		unix.Close(k.fd)
		return place{}, err
	}
	at := path.Join(w.path, strings.Join(k.done, "/"))
	return place{dir: k.fd, name: name, path: path.Join(at, name)}, nil
}

// relative makes an absolute path relative to the walker's directory.
func (w *walker) relative(p string) (string, error) {
	switch {
	case w.path == "/":
		return p, nil
	case p == w.path:
		return ".", nil
	case strings.HasPrefix(p, w.path+"/"):
		return p[len(w.path)+1:], nil
	}
	return "", w.outside()
}

func (w *walker) outside() error {
	return fail(w.code, "", "the path leads out of "+quote(w.path))
}

func elements(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(s string) bool { return s == "" || s == "." })
}

// run goes to the directory of the last element and returns that element.
func (k *walk) run(follow bool) (string, error) {
	for len(k.pending) > 0 {
		name := k.pending[0]
		k.pending = k.pending[1:]
		if name == ".." {
			if err := k.up(); err != nil {
				return "", err
			}
			continue
		}
		if k.w.alias != nil {
			name = k.w.alias(k.fd, name)
		}
		last := len(k.pending) == 0
		if last && !follow {
			return name, nil
		}
		target, err := k.step(name, last)
		switch {
		case err != nil:
			return "", err
		case target != "":
			if err := k.follow(target); err != nil {
				return "", err
			}
		case last:
			return name, nil
		}
	}
	return ".", nil
}

// step enters a directory, but stays before a last element. If name is a link
// it returns where that leads.
func (k *walk) step(name string, last bool) (target string, err error) {
	if !last {
		fd, err := unix.Openat(k.fd, name, openDir, 0)
		if err == nil {
			unix.Close(k.fd)
			k.fd, k.done = fd, append(k.done, name)
			return "", nil
		}
		if err != unix.ENOTDIR && err != unix.ELOOP {
			return "", err
		}
	}
	target, err = readLink(k.fd, name)
	switch {
	case err == nil:
		return target, nil
	case last && (err == unix.EINVAL || err == unix.ENOENT):
		return "", nil
	case err == unix.EINVAL:
		return "", unix.ENOTDIR
	}
	return "", err
}

// follow puts a link's target in the way.
func (k *walk) follow(target string) error {
	if k.links++; k.links > maxLinks {
		return unix.ELOOP
	}
	if target[0] == '/' {
		// Elements of the target may be links, so that ".." in it cannot be
		// taken away before the walk: only the beginning decides.
		rel, err := k.w.relative(strings.TrimRight(target, "/") + "/")
		if k.w.path == "/" {
			rel, err = target, nil
		}
		if err != nil {
			return err
		}
		target = rel
		if err := k.restart(nil); err != nil {
			return err
		}
	}
	k.pending = append(elements(target), k.pending...)
	return nil
}

// up goes to the parent. The kernel's ".." is not asked, since a directory may
// have been moved meanwhile: the way from the start is walked again.
func (k *walk) up() error {
	if len(k.done) == 0 {
		if k.w.path == "/" {
			return nil
		}
		return k.w.outside()
	}
	return k.restart(k.done[:len(k.done)-1])
}

func (k *walk) restart(names []string) error {
	fd, err := unix.FcntlInt(uintptr(k.w.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for _, name := range names {
		next, err := unix.Openat(fd, name, openDir, 0)
		unix.Close(fd)
		if err != nil {
			return err
		}
		fd = next
	}
	unix.Close(k.fd)
	k.fd, k.done = fd, slices.Clone(names)
	return nil
}

// readLink reads a link of any length.
func readLink(dir int, name string) (string, error) {
	for size := 256; ; size *= 2 {
		b := make([]byte, size)
		n, err := unix.Readlinkat(dir, name, b)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return "", unix.ENOENT
		}
		if n < size {
			return string(b[:n]), nil
		}
	}
}
