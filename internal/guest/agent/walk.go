package agent

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// walker resolves paths below a directory one element at a time and follows
// symbolic links itself. It opens every element relative to the previous one
// and with O_NOFOLLOW, so that concurrent changes to the tree cannot lead it
// out of the directory. It does not need openat2, which some kernels lack.
type walker struct {
	fd   int
	path string       // path of the directory; absolute links are resolved against it
	code sandbox.Code // of the error for a path that leaves the directory
	// alias, if set, maps a name in a directory to its temporary name.
	alias func(dir int, name string) string
}

// place is an entry of a directory, existing or not. name is "." for the
// walker's own directory.
type place struct {
	dir  int // the owner of the place closes it
	name string
	path string // absolute; only the last element may be a link
}

func (p place) close() { unix.Close(p.dir) }

const (
	maxLinks = 40
	openDir  = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// walk is one path resolution.
type walk struct {
	w       *walker
	fd      int
	done    []string // elements resolved so far, none of them a link
	pending []string
	links   int
}

// find resolves an absolute path. If follow is set, it follows a link in the
// last element.
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

// run opens the directory of the last element and returns that element.
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

// step enters a directory, but not the last element. If name is a link, it
// returns the link's target.
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

// follow puts a link's target in front of the remaining elements.
func (k *walk) follow(target string) error {
	if k.links++; k.links > maxLinks {
		return unix.ELOOP
	}
	if target[0] == '/' {
		// Elements of the target may be links, so its ".." elements cannot be removed
		// in advance. Only the start of the path is known.
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

// up goes to the parent. It does not use the kernel's "..", because a directory
// may have been moved meanwhile: it walks from the start again.
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
