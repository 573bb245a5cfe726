package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// entry is a file of a directory that is being persisted.
type entry struct {
	node
	path     string // relative to the top
	state    state
	children []*entry
}

// state shows whether a file has changed. Every change of a file or its
// attributes sets the change time (ctime), which code in a sandbox cannot set
// back.
type state struct {
	dev, ino uint64
	size     int64
	modified int64 // nanoseconds
	changed  int64 // nanoseconds
}

// Limits are the limits of one version. Zero means no limit.
type Limits struct {
	Bytes int64 // of content, without holes
	Files int64 // of all types
}

// scanner walks a directory that may change during the walk.
type scanner struct {
	ctx     context.Context
	limits  Limits
	dev     uint64
	links   map[uint64]string // inodes with several names → the first name
	files   []*entry          // regular files, in the order found
	names   []*entry          // further names (hard links) of them
	total   int64             // entries
	bytes   int64
	skipped int64
}

func (s *scanner) scan(root *os.Root) (*entry, error) {
	info, err := root.Lstat(".")
	if err != nil {
		return nil, unreadable(".", err)
	}
	s.links = map[uint64]string{}
	top := newEntry("", ".", info)
	s.dev = top.state.dev
	return top, s.walk(root, top, 0)
}

func newEntry(parent, name string, info fs.FileInfo) *entry {
	stat := info.Sys().(*syscall.Stat_t)
	e := &entry{path: path.Join(parent, name)}
	e.name, e.mode, e.uid, e.gid = name, stat.Mode&0o7777, stat.Uid, stat.Gid
	e.modified = time.Unix(stat.Mtim.Sec, stat.Mtim.Nsec)
	e.state = stateOf(stat)
	return e
}

func stateOf(stat *syscall.Stat_t) state {
	return state{
		dev: stat.Dev, ino: stat.Ino, size: stat.Size,
		modified: stat.Mtim.Nano(), changed: stat.Ctim.Nano(),
	}
}

// walk reads one directory; d is its entry.
func (s *scanner) walk(root *os.Root, d *entry, depth int) error {
	d.kind = dir
	if depth > maxDepth {
		return tooMuch("%.80q… is more than %d directories deep", d.path, maxDepth)
	}
	self, err := root.Open(".")
	if err != nil {
		return unreadable(d.path, err)
	}
	defer func() { _ = self.Close() }() // errors of closing a directory do not matter
	if d.xattrs, err = readXattrs(self); err != nil {
		return unreadable(d.path, err)
	}
	names, err := self.Readdirnames(-1)
	if err != nil {
		return unreadable(d.path, err)
	}
	slices.Sort(names)
	parent := d.path
	if parent == "." {
		parent = ""
	}
	d.children = make([]*entry, 0, len(names))
	for _, name := range names {
		e, err := s.look(root, parent, name, depth)
		if err != nil {
			return err
		}
		if e != nil {
			d.children = append(d.children, e)
		}
	}
	return s.ctx.Err()
}

// look describes one file. It returns nil for files that are not stored.
func (s *scanner) look(root *os.Root, parent, name string, depth int) (*entry, error) {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // removed meanwhile
	}
	if err != nil {
		return nil, unreadable(path.Join(parent, name), err)
	}
	e := newEntry(parent, name, info)
	if s.total++; s.limits.Files > 0 && s.total > s.limits.Files {
		return nil, tooMuch("more than %d files", s.limits.Files)
	}
	switch info.Mode().Type() {
	case 0:
		return e, s.regular(e, info.Sys().(*syscall.Stat_t))
	case fs.ModeDir:
		return s.enter(root, e, depth)
	case fs.ModeSymlink:
		e.kind = symlink
		if e.target, err = root.Readlink(name); err != nil {
			return nil, nil // replaced meanwhile
		}
		return e, nil
	case fs.ModeNamedPipe:
		e.kind = fifo
		return e, nil
	}
	s.skipped++ // sockets and device nodes only make sense for a running kernel
	return nil, nil
}

func (s *scanner) regular(e *entry, stat *syscall.Stat_t) error {
	e.kind = file
	if stat.Nlink > 1 {
		if first, ok := s.links[stat.Ino]; ok {
			e.kind, e.target = same, first
			s.names = append(s.names, e)
			return nil
		}
		s.links[stat.Ino] = e.path
	}
	if s.bytes += min(stat.Size, stat.Blocks*512); s.limits.Bytes > 0 && s.bytes > s.limits.Bytes {
		return tooMuch("more than %d bytes", s.limits.Bytes)
	}
	s.files = append(s.files, e)
	return nil
}

// enter walks a directory. If it was replaced, or is a mount point of another
// file system, it is skipped.
func (s *scanner) enter(root *os.Root, e *entry, depth int) (*entry, error) {
	if e.state.dev != s.dev {
		s.skipped++
		return nil, nil
	}
	below, err := root.OpenRoot(e.name)
	if err != nil {
		if now, lookErr := root.Lstat(e.name); displaced(err) || lookErr != nil || !now.IsDir() {
			return nil, nil // replaced meanwhile
		}
		return nil, unreadable(e.path, err)
	}
	defer func() { _ = below.Close() }() // errors of closing a directory do not matter
	now, err := below.Lstat(".")
	if err != nil {
		return nil, unreadable(e.path, err)
	}
	if st := stateOf(now.Sys().(*syscall.Stat_t)); st.dev != e.state.dev || st.ino != e.state.ino {
		return nil, nil // replaced, or another file system is mounted here
	}
	return e, s.walk(below, e, depth+1)
}

func unreadable(name string, err error) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "workspace.persist", Subject: fmt.Sprintf("%.200q", name),
		Message: "cannot be read: " + cause(err), Cause: err,
	}
}

// cause describes a system error without the path.
func cause(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "see the daemon's log for the cause"
}

func tooMuch(format string, args ...any) error {
	return &sandbox.Error{
		Code: sandbox.CodeExhausted, Op: "workspace.persist", Message: "the directory is too large: " + fmt.Sprintf(format, args...),
		Hint: "remove something from it, or raise the limit",
	}
}

// keptXattr reports whether an extended attribute is stored: only those that
// programs set for themselves. Others concern the kernel's security.
func keptXattr(name string) bool {
	return strings.HasPrefix(name, "user.") && len(name) <= maxName && !strings.ContainsRune(name, 0)
}

// readXattrs reads the stored extended attributes of an open file.
func readXattrs(f *os.File) ([]xattr, error) {
	fd := int(f.Fd())
	list := make([]byte, 4<<10)
	n, err := unix.Flistxattr(fd, list)
	if errors.Is(err, unix.ERANGE) {
		list = make([]byte, maxXattrs)
		n, err = unix.Flistxattr(fd, list)
	}
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var kept []xattr
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if !keptXattr(name) {
			continue
		}
		value := make([]byte, maxXattrs)
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		kept = append(kept, xattr{name, slices.Clip(value[:n:n])})
	}
	slices.SortFunc(kept, func(a, b xattr) int { return strings.Compare(a.name, b.name) })
	return kept, nil
}
