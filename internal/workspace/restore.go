package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
)

// Restore writes a version into an empty directory, and returns it. Number 0
// means the newest version. Owners are restored if the process may change them.
// Nothing outside the directory is changed, even if the store is malicious. On
// an error the directory is left incomplete.
func (w *Workspace) Restore(ctx context.Context, number int, root *os.Root) (Version, error) {
	head, err := w.head(ctx)
	if err != nil {
		return Version{}, err
	}
	if number == 0 && len(head.Versions) == 0 {
		return Version{}, nil
	}
	v, err := head.find(number)
	if err != nil {
		return Version{}, err
	}
	if err := w.chunks.Load(ctx, head.Packs); err != nil {
		return Version{}, err
	}
	top, err := v.top()
	if err != nil {
		return Version{}, err
	}
	r := &restoring{root: root, owner: os.Geteuid() == 0, entries: v.Files + v.Dirs - 1, bytes: v.Bytes}
	return v, r.run(ctx, w, top)
}

// restoring is the state of one Restore.
type restoring struct {
	root  *os.Root
	owner bool // may change owners

	// Number of files and bytes that the version still claims to have. They limit
	// the restore, because few chunks can be the content of any number of files.
	entries, bytes int64

	dirs  []placed // parents first
	tasks []task
	links []placed
	plan  []chunk.ID
}

type placed struct {
	path string
	node *node
}

// task is a group of files in one directory, created by one goroutine.
type task struct {
	dir   string
	nodes []*node
}

// taskFiles and taskBytes limit a task, so that several goroutines work on a
// large directory.
const (
	taskFiles = 128
	taskBytes = 16 << 20
)

func (r *restoring) run(ctx context.Context, w *Workspace, top *node) error {
	if err := r.prepare(ctx, w, top); err != nil {
		return err
	}
	if err := r.files(ctx, w.chunks.Reader(r.plan)); err != nil {
		return err
	}
	for _, l := range r.links {
		if err := r.link(l); err != nil {
			return err
		}
	}
	// Deepest first, because creating files changes the parent directory's time.
	for _, d := range slices.Backward(r.dirs) {
		if err := r.finish(d); err != nil {
			return err
		}
	}
	return nil
}

// prepare creates all directories and collects the tasks.
func (r *restoring) prepare(ctx context.Context, w *Workspace, top *node) error {
	entries, err := fs.ReadDir(r.root.FS(), ".")
	if err != nil {
		return unwritable(".", err)
	}
	if len(entries) > 0 {
		return &sandbox.Error{Code: sandbox.CodeConflict, Op: "workspace.restore", Message: "the directory is not empty"}
	}
	r.dirs = append(r.dirs, placed{".", top})
	open := map[string]*task{}
	err = walk(ctx, w.direct(), top, "", 0, func(name string, n *node) (bool, error) {
		if err := r.count(n); err != nil {
			return false, err
		}
		switch n.kind {
		case dir:
			r.dirs = append(r.dirs, placed{name, n})
			return true, unwritable(name, r.root.Mkdir(name, 0o700))
		case same:
			r.links = append(r.links, placed{name, n})
			return false, nil
		}
		r.assign(open, path.Dir(name), n)
		return false, nil
	})
	for _, t := range open {
		r.tasks = append(r.tasks, *t)
	}
	return err
}

// count fails if the version has more files or bytes than it claims.
func (r *restoring) count(n *node) error {
	r.entries--
	if n.kind == file {
		for _, p := range n.content {
			if !p.hole() {
				r.bytes -= p.length
			}
		}
	}
	if r.entries < 0 || r.bytes < 0 {
		return damaged("the version has more files than it says")
	}
	return nil
}

func (r *restoring) assign(open map[string]*task, dir string, n *node) {
	t := open[dir]
	if t == nil {
		t = &task{dir: dir}
		open[dir] = t
	}
	t.nodes = append(t.nodes, n)
	var size int64
	for _, p := range n.content {
		if size += p.length; !p.hole() {
			r.plan = append(r.plan, p.id)
		}
	}
	if len(t.nodes) >= taskFiles || size > taskBytes {
		r.tasks = append(r.tasks, *t)
		delete(open, dir)
	}
}

// files creates everything except directories and hard links.
func (r *restoring) files(ctx context.Context, from source) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(r.tasks) || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := r.task(ctx, from, r.tasks[i]); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

func (r *restoring) task(ctx context.Context, from source, t task) error {
	below, err := r.root.OpenRoot(t.dir)
	if err != nil {
		return unwritable(t.dir, err)
	}
	defer func() { _ = below.Close() }() // errors of closing a directory do not matter
	self, err := below.Open(".")
	if err != nil {
		return unwritable(t.dir, err)
	}
	defer func() { _ = self.Close() }() // likewise
	for _, n := range t.nodes {
		name := join(t.dir, n.name)
		switch n.kind {
		case file:
			err = r.file(ctx, from, below, n)
		case symlink:
			err = below.Symlink(n.target, n.name)
		case fifo:
			err = unix.Mkfifoat(int(self.Fd()), n.name, n.mode)
		}
		if err == nil {
			err = r.attributes(int(self.Fd()), n)
		}
		if err != nil {
			return unwritable(name, err)
		}
	}
	return nil
}

func (r *restoring) file(ctx context.Context, from source, below *os.Root, n *node) error {
	f, err := below.OpenFile(n.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = r.fill(ctx, from, f, n)
	return errors.Join(err, f.Close())
}

func (r *restoring) fill(ctx context.Context, from source, f *os.File, n *node) error {
	sparse := false
	for _, p := range n.content {
		if p.hole() {
			if _, err := f.Seek(p.length, io.SeekCurrent); err != nil {
				return err
			}
			sparse = true
			continue
		}
		content, err := piecesContent(ctx, from, p)
		if err != nil {
			return err
		}
		if _, err := f.Write(content); err != nil {
			return err
		}
	}
	if sparse {
		if err := f.Truncate(n.size()); err != nil {
			return err
		}
	}
	return setXattrs(f, n.xattrs)
}

func setXattrs(f *os.File, xattrs []xattr) error {
	for _, x := range xattrs {
		if err := unix.Fsetxattr(int(f.Fd()), x.name, x.value, 0); err != nil {
			return fmt.Errorf("extended attribute %.80q: %w", x.name, err)
		}
	}
	return nil
}

// attributes sets owner, mode and time of a new file in an open directory.
// Symbolic links are not followed. The owner is set first, because that clears
// set-id bits.
func (r *restoring) attributes(dirfd int, n *node) error {
	if r.owner {
		if err := unix.Fchownat(dirfd, n.name, int(n.uid), int(n.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if n.kind != symlink {
		// It is not a symbolic link, and no other process can access the directory.
		if err := unix.Fchmodat(dirfd, n.name, n.mode, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dirfd, n.name, times(n), unix.AT_SYMLINK_NOFOLLOW)
}

func times(n *node) []unix.Timespec {
	at := unix.Timespec{Sec: n.modified.Unix(), Nsec: int64(n.modified.Nanosecond())}
	return []unix.Timespec{at, at}
}

// link creates a hard link. Its target is a path from the store, which os.Root
// keeps inside the directory.
func (r *restoring) link(l placed) error {
	info, err := r.root.Lstat(l.node.target)
	if err != nil {
		return unwritable(l.path, err)
	}
	if !info.Mode().IsRegular() {
		return damaged("%.80q is a hard link to something that is not a file", l.path)
	}
	return unwritable(l.path, r.root.Link(l.node.target, l.path))
}

// finish sets the attributes of a directory.
func (r *restoring) finish(d placed) error {
	self, err := r.root.Open(d.path)
	if err != nil {
		return unwritable(d.path, err)
	}
	defer func() { _ = self.Close() }() // nothing was written to it
	if err := setXattrs(self, d.node.xattrs); err != nil {
		return unwritable(d.path, err)
	}
	own := *d.node
	own.name = "."
	return unwritable(d.path, r.attributes(int(self.Fd()), &own))
}

// unwritable classifies an error of a restore.
func unwritable(name string, err error) error {
	var known *sandbox.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &known):
		return known // it may be joined with a close error
	}
	code := sandbox.CodeUnavailable
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = sandbox.CodeExhausted
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EFBIG), errors.Is(err, unix.EINVAL):
		code = sandbox.CodeInvalid // the store is damaged
	}
	return &sandbox.Error{
		Code: code, Op: "workspace.restore", Subject: fmt.Sprintf("%.200q", name), Message: "cannot be created: " + cause(err), Cause: err,
	}
}
