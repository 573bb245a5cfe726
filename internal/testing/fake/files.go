package fake

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/fake/internal/memfs"
	"github.com/atoll-run/atoll/sandbox"
)

// owner is who a file belongs to.
type owner struct{ uid, gid uint32 }

// fileError classifies an error of the file system.
func (s *fakeSandbox) fileError(op, subject string, err error) error {
	var errno syscall.Errno
	if err == nil || !errors.As(err, &errno) {
		return err
	}
	code := sandbox.CodeInvalid
	switch errno {
	case syscall.ENOENT:
		code = sandbox.CodeNotFound
	case syscall.EEXIST:
		code = sandbox.CodeAlreadyExists
	case syscall.ENOTEMPTY:
		code = sandbox.CodeConflict
	case syscall.EACCES, syscall.EPERM:
		code = sandbox.CodeDenied
	}
	return &sandbox.Error{Code: code, Op: op, Subject: subject, Message: errno.Error(), Cause: err}
}

// beginFile is called first in every operation on files.
func (i *instance) beginFile(ctx context.Context, op string, paths ...string) error {
	if err := i.begin(ctx, op); err != nil {
		return err
	}
	for _, p := range paths {
		if err := sandbox.ValidatePath("path", p); err != nil {
			return err
		}
	}
	return nil
}

var fileTypes = map[memfs.Type]sandbox.FileType{
	memfs.File: sandbox.TypeFile, memfs.Dir: sandbox.TypeDir, memfs.Symlink: sandbox.TypeSymlink,
	memfs.FIFO: sandbox.TypeFIFO, memfs.Device: sandbox.TypeDevice,
}

func fileInfo(p string, n memfs.Info) sandbox.FileInfo {
	return sandbox.FileInfo{
		Path: p, Type: fileTypes[n.Type], Size: n.Size, Mode: n.Mode, UID: n.UID, GID: n.GID,
		ModTime: n.ModTime, Target: n.Target, Nlink: n.Nlink, Identity: n.Inode,
	}
}

// Stat describes a file.
func (i *instance) Stat(ctx context.Context, p string) (sandbox.FileInfo, error) {
	if err := i.beginFile(ctx, "files.stat", p); err != nil {
		return sandbox.FileInfo{}, err
	}
	info, err := i.files.Stat(p, false)
	if err != nil {
		return sandbox.FileInfo{}, i.fileError("files.stat", p, err)
	}
	return fileInfo(p, info), nil
}

// List yields the files below a directory.
func (i *instance) List(ctx context.Context, p string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		err := i.beginFile(ctx, "files.list", p)
		if err == nil {
			depth := opts.Depth
			if depth == 0 {
				depth = 1
			}
			var more bool
			if more, err = i.list(ctx, p, "", depth, yield); !more {
				return
			}
			err = i.fileError("files.list", p, err)
		}
		if err != nil {
			yield(sandbox.FileInfo{}, err)
		}
	}
}

// list yields the files below rel in dir; more is false when yield returned false.
func (i *instance) list(ctx context.Context, dir, rel string, depth int, yield func(sandbox.FileInfo, error) bool) (more bool, err error) {
	names, err := i.files.Names(path.Join(dir, rel))
	if err != nil {
		if rel != "" && errors.Is(err, syscall.ENOENT) {
			return true, nil // It was removed while the tree was listed.
		}
		return true, err
	}
	for _, name := range names {
		if err := errors.Join(ctx.Err(), i.gone("files.list")); err != nil {
			return true, err
		}
		below := path.Join(rel, name)
		info, err := i.files.Stat(path.Join(dir, below), false)
		if err != nil {
			continue // It was removed while the directory was listed.
		}
		if !yield(fileInfo(below, info), nil) {
			return false, nil
		}
		if info.Type == memfs.Dir && depth != 1 {
			if more, err := i.list(ctx, dir, below, depth-1, yield); err != nil || !more {
				return more, err
			}
		}
	}
	return true, nil
}

// Read opens a regular file.
func (i *instance) Read(ctx context.Context, p string, opts driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	const op = "files.read"
	if err := i.beginFile(ctx, op, p); err != nil {
		return nil, sandbox.FileInfo{}, err
	}
	file, err := i.files.Open(p, os.O_RDONLY, 0)
	if err != nil {
		return nil, sandbox.FileInfo{}, i.fileError(op, p, err)
	}
	if file.Info().Type != memfs.File {
		return nil, sandbox.FileInfo{}, fail(sandbox.CodeInvalid, op, p, "not a regular file")
	}
	if _, err := file.Seek(opts.Offset, io.SeekStart); err != nil {
		return nil, sandbox.FileInfo{}, i.fileError(op, p, err)
	}
	r := io.Reader(file)
	if opts.Length > 0 {
		r = io.LimitReader(r, opts.Length)
	}
	return &fileReader{r, i.fakeSandbox}, fileInfo(p, file.Info()), nil
}

// fileReader reads until the sandbox ends.
type fileReader struct {
	r       io.Reader
	sandbox *fakeSandbox
}

func (f *fileReader) Read(b []byte) (int, error) {
	if err := f.sandbox.gone("files.read"); err != nil {
		return 0, err
	}
	return f.r.Read(b)
}

func (f *fileReader) Close() error { return nil }

// Write makes or replaces a file.
func (i *instance) Write(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
	const op = "files.write"
	if err := i.beginFile(ctx, op, p); err != nil {
		return sandbox.FileInfo{}, err
	}
	who, err := i.owner(op, opts.Owner)
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	draft := i.files.Draft(0o600)
	if err := i.fill(ctx, draft, r); err != nil {
		return sandbox.FileInfo{}, err
	}
	if !opts.NoParents {
		if err := i.mkdirAll(path.Dir(path.Clean(p)), 0o755, who); err != nil {
			return sandbox.FileInfo{}, i.fileError(op, p, err)
		}
	}
	info, err := i.files.Publish(draft, p, opts.NoReplace, true, func(old *memfs.Info) (mode, uid, gid uint32) {
		mode, by := uint32(0o644), who
		if old != nil {
			mode = old.Mode
			if opts.Owner == "" {
				by = owner{old.UID, old.GID}
			}
		}
		if opts.Mode != 0 {
			mode = opts.Mode
		}
		return mode, by.uid, by.gid
	})
	if err != nil {
		return sandbox.FileInfo{}, i.fileError(op, p, err)
	}
	return fileInfo(p, info), nil
}

// fill copies r to a draft until ctx or the sandbox ends.
func (i *instance) fill(ctx context.Context, draft *memfs.Handle, r io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := i.gone("files.write"); err != nil {
			return err
		}
		n, err := r.Read(buf)
		if n > 0 {
			_, _ = draft.Write(buf[:n]) // It is open for writing, and in memory.
		}
		if errors.Is(err, io.EOF) {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// owner finds the owner that options name; empty is the sandbox's user.
func (*instance) owner(op, name string) (owner, error) {
	who, ok := lookUser(name)
	if !ok {
		return who, fail(sandbox.CodeInvalid, op, "owner", "no such user")
	}
	return who, nil
}

// mkdirAll makes a directory with its parents; what exists is kept.
func (s *fakeSandbox) mkdirAll(dir string, mode uint32, who owner) error {
	info, err := s.files.Stat(dir, true)
	switch {
	case err == nil && info.Type == memfs.Dir:
		return nil
	case err == nil:
		return syscall.ENOTDIR
	case !errors.Is(err, syscall.ENOENT):
		return err
	}
	if err := s.mkdirAll(path.Dir(dir), 0o755, who); err != nil {
		return err
	}
	return s.mkdir(dir, mode, who)
}

// mkdir makes one directory; another one that came first will do.
func (s *fakeSandbox) mkdir(dir string, mode uint32, who owner) error {
	err := s.files.Mkdir(dir, mode)
	if errors.Is(err, syscall.EEXIST) {
		if info, serr := s.files.Stat(dir, true); serr == nil && info.Type == memfs.Dir {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return s.files.Chown(dir, who.uid, who.gid)
}

// Mkdir makes a directory.
func (i *instance) Mkdir(ctx context.Context, p string, opts driver.MkdirOptions) error {
	const op = "files.mkdir"
	if err := i.beginFile(ctx, op, p); err != nil {
		return err
	}
	who, err := i.owner(op, opts.Owner)
	if err != nil {
		return err
	}
	mode := opts.Mode
	if mode == 0 {
		mode = 0o755
	}
	p = path.Clean(p)
	if opts.Parents {
		err = i.mkdirAll(p, mode, who)
	} else if err = i.files.Mkdir(p, mode); err == nil {
		err = i.files.Chown(p, who.uid, who.gid)
	}
	return i.fileError(op, p, err)
}

// Remove removes a file or a tree.
func (i *instance) Remove(ctx context.Context, p string, recursive bool) error {
	const op = "files.remove"
	if err := i.beginFile(ctx, op, p); err != nil {
		return err
	}
	if p = path.Clean(p); p == "/" {
		return fail(sandbox.CodeInvalid, op, p, "the root cannot be removed")
	}
	if recursive {
		return i.fileError(op, p, i.files.RemoveAll(p))
	}
	info, err := i.files.Stat(p, false)
	if err == nil {
		err = i.files.Remove(p, info.Type == memfs.Dir)
	}
	return i.fileError(op, p, err)
}

// Move renames.
func (i *instance) Move(ctx context.Context, from, to string, overwrite bool) error {
	const op = "files.move"
	if err := i.beginFile(ctx, op, from, to); err != nil {
		return err
	}
	from, to = path.Clean(from), path.Clean(to)
	if from == "/" || to == "/" || strings.HasPrefix(to, from+"/") {
		return fail(sandbox.CodeInvalid, op, to, "a directory cannot be moved there")
	}
	if info, err := i.files.Stat(to, false); err == nil && info.Type == memfs.Dir {
		if _, err := i.files.Stat(from, false); err != nil {
			return i.fileError(op, from, err)
		}
		return fail(sandbox.CodeAlreadyExists, op, to, "a directory is in the way")
	}
	return i.fileError(op, to, i.files.Rename(from, to, !overwrite))
}

// Watch reports changes until ctx or the sandbox ends, or the path is removed.
func (i *instance) Watch(ctx context.Context, p string, recursive bool) (<-chan sandbox.FileEvent, error) {
	if err := i.beginFile(ctx, "watch", p); err != nil {
		return nil, err
	}
	w, err := i.files.Watch(p, recursive)
	if err != nil {
		return nil, i.fileError("watch", p, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(i.life, cancel)
	events := make(chan sandbox.FileEvent)
	go func() {
		defer close(events)
		defer w.Close()
		defer cancel()
		defer stop()
		for {
			e, ok := w.Next(ctx)
			if !ok {
				return
			}
			select {
			case events <- sandbox.FileEvent{Op: fileOps[e.Op], Path: e.Path, Dir: e.Dir}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events, nil
}

var fileOps = map[memfs.Op]sandbox.FileOp{
	memfs.Create: sandbox.OpCreate, memfs.Write: sandbox.OpWrite, memfs.Remove: sandbox.OpRemove,
	memfs.Chmod: sandbox.OpChmod, memfs.Overflow: sandbox.OpOverflow,
}
