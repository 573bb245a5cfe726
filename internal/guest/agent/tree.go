package agent

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// maxOpenDirs limits the descriptors of one walk. maxListPath limits the length
// of a path in a listing: with a deep tree of long names, the listing would
// otherwise grow with the square of the depth.
const (
	maxOpenDirs = 64
	maxListPath = 32 << 10
)

// tree walks a directory of any depth and width through descriptors, one
// directory at a time. It never passes a composed path to the kernel, so that
// links cannot redirect it and no path is too long.
type tree struct {
	levels []level
	path   []byte // of the current directory, relative, ending in a slash if not empty
	// leave, if set, is called after a directory was walked.
	leave func(dir int, name string) error
}

// level is a directory on the current path.
type level struct {
	fd       int // -1 while closed to save descriptors
	dev, ino uint64
	name     string
	todo     []string // entries not yet visited, in order
	path     int      // length of the path before this level
}

// openTree starts a walk at a directory, which must not be a link.
func openTree(dir int, name string) (*tree, error) {
	t := &tree{}
	return t, t.enter(dir, name, false)
}

func (t *tree) close() {
	for _, l := range t.levels {
		if l.fd >= 0 {
			unix.Close(l.fd)
		}
	}
	t.levels = nil
}

// enter descends into a directory. extend says whether its name becomes part of
// the path.
func (t *tree) enter(dir int, name string, extend bool) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	var names []string
	if err == nil {
		names, err = readNames(fd)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	t.levels = append(t.levels, level{fd: fd, dev: st.Dev, ino: st.Ino, name: name, todo: names, path: len(t.path)})
	if extend {
		t.path = append(append(t.path, name...), '/')
	}
	if k := len(t.levels) - maxOpenDirs; k > 0 && t.levels[k-1].fd >= 0 {
		unix.Close(t.levels[k-1].fd)
		t.levels[k-1].fd = -1
	}
	return nil
}

// readNames lists a directory in lexical order.
func readNames(fd int) ([]string, error) {
	var names []string
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			slices.Sort(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// up returns to the parent. If its descriptor was closed to save descriptors,
// up opens the parent again and checks that it is the same directory.
func (t *tree) up() error {
	top := t.levels[len(t.levels)-1]
	t.levels = t.levels[:len(t.levels)-1]
	t.path = t.path[:top.path]
	defer unix.Close(top.fd)
	if len(t.levels) == 0 {
		return nil
	}
	parent := &t.levels[len(t.levels)-1]
	if parent.fd < 0 {
		fd, err := unix.Openat(top.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Dev != parent.dev || st.Ino != parent.ino {
			unix.Close(fd)
			return fail(sandbox.CodeConflict, "", "a directory was moved meanwhile")
		}
		parent.fd = fd
	}
	if t.leave != nil {
		return t.leave(parent.fd, top.name)
	}
	return nil
}

// walk visits everything below, parents first. visit gets the directory that
// holds the entry, its name and its level, starting at 1. It returns whether to
// descend. Entries that disappear meanwhile are skipped.
func (t *tree) walk(visit func(dir int, name string, level int) (bool, error)) error {
	for len(t.levels) > 0 {
		top := &t.levels[len(t.levels)-1]
		if len(top.todo) == 0 {
			if err := t.up(); err != nil {
				return err
			}
			continue
		}
		name := top.todo[0]
		top.todo = top.todo[1:]
		down, err := visit(top.fd, name, len(t.levels))
		if err != nil {
			return err
		}
		if !down {
			continue
		}
		err = t.enter(top.fd, name, true)
		if err != nil && err != unix.ENOENT && err != unix.ENOTDIR && err != unix.ELOOP {
			return about(t.rel(name), err)
		}
	}
	return nil
}

// rel returns the path of an entry of the current directory.
func (t *tree) rel(name string) string { return string(t.path) + name }

// list sends a listing of everything below a directory.
func (s *fileServer) list(op *wire.Op, d *wire.Decoder) error {
	p, depth := d.String(), int(d.Int())
	if err := d.End(); err != nil {
		return err
	}
	if depth == 0 {
		depth = 1
	}
	return s.sendTree(op, p, depth, func(e *wire.Encoder, dir int, name, rel string) (sandbox.FileType, error) {
		info, err := describe(dir, name, rel)
		wire.PutFile(e, &info)
		return info.Type, err
	})
}

// sendTree sends everything below a directory, encoded by put.
func (s *fileServer) sendTree(op *wire.Op, p string, depth int, put func(e *wire.Encoder, dir int, name, rel string) (sandbox.FileType, error)) error {
	at, err := s.root.find(p, true)
	if err != nil {
		return about(p, err)
	}
	defer at.close()
	t, err := openTree(at.dir, at.name)
	if err != nil {
		if err == unix.ENOTDIR {
			return fail(sandbox.CodeInvalid, p, "not a directory")
		}
		return about(p, err)
	}
	defer t.close()
	out := &laneWriter{op: op}
	var one, e wire.Encoder
	err = t.walk(func(dir int, name string, level int) (bool, error) {
		if s.isTemp(name) {
			return false, nil
		}
		if len(t.path)+len(name) > maxListPath {
			return false, fail(sandbox.CodeExhausted, p, "a path below it is too long to list")
		}
		one.B, e.B = one.B[:0], e.B[:0]
		kind, err := put(&one, dir, name, t.rel(name))
		if err != nil {
			return false, ignoreGone(err)
		}
		e.Bytes(one.B)
		_, err = out.Write(e.B)
		return kind == sandbox.TypeDir && (depth < 0 || level < depth), err
	})
	if err != nil {
		return about(p, err)
	}
	return out.Flush()
}

// laneWriter collects what is written to it into large frames of lane 0.
type laneWriter struct {
	op    *wire.Op
	frame []byte
	sent  int64
}

func (w *laneWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if w.frame == nil {
			w.frame = w.op.NextFrame(w.sent)[:wire.HeaderLen]
		}
		n := min(len(rest), cap(w.frame)-len(w.frame))
		w.frame = append(w.frame, rest[:n]...)
		rest = rest[n:]
		if len(w.frame) == cap(w.frame) {
			if err := w.Flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// Flush sends the rest of the buffer.
func (w *laneWriter) Flush() error {
	if w.frame == nil {
		return nil
	}
	frame := w.frame
	w.frame = nil
	w.sent += int64(len(frame) - wire.HeaderLen)
	return w.op.SendFrame(0, frame)
}

// isTemp reports whether name is a file being written.
func (s *fileServer) isTemp(name string) bool {
	if !strings.HasPrefix(name, tempPrefix) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.temps[name]
}
