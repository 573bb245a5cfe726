package blob

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// pending is the directory of blobs being written. Keys cannot begin with a
// dot.
const pending = ".pending"

// Dir is a Store in a directory. A blob is a file whose path is the blob's key.
// A blob being written is a locked file below .pending. OpenDir removes files
// of killed writers.
type Dir struct {
	root *os.Root
}

// OpenDir opens the store in a directory, which is created with mode 0700 if
// missing. The store need not be closed.
func OpenDir(dir string) (*Dir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, dirError("blob.open", dir, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, dirError("blob.open", dir, err)
	}
	if err := root.Mkdir(pending, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		_ = root.Close() // return the first error
		return nil, dirError("blob.open", dir, err)
	}
	d := &Dir{root: root}
	return d, d.sweep()
}

// Put writes a blob; see [Store].
func (d *Dir) Put(ctx context.Context, key string, r io.Reader, opts PutOptions) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	if opts.IfAbsent { // to avoid useless writing; the link below decides
		if _, err := d.root.Lstat(key); err == nil {
			return fail(sandbox.CodeAlreadyExists, "blob.put", key, "already exists", nil)
		}
	}
	f, name, err := d.create()
	if err != nil {
		return dirError("blob.put", key, err)
	}
	defer func() {
		_ = d.root.Remove(name) // already gone after a rename
		_ = f.Close()           // it is synced, or writing failed
	}()
	n, err := io.Copy(f, reader{ctx, limited(r, opts)})
	if err != nil {
		return dirError("blob.put", key, err)
	}
	if opts.IfAbsent && n > MaxIfAbsent {
		return errTooLarge()
	}
	if err := f.Sync(); err != nil {
		return dirError("blob.put", key, err)
	}
	return dirError("blob.put", key, d.publish(name, key, opts.IfAbsent))
}

// create creates and locks a temporary file.
func (d *Dir) create() (*os.File, string, error) {
	for {
		name := path.Join(pending, rand.Text())
		f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, "", err
		}
		// A sweep may have removed it between creation and lock.
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			if now, err := d.root.Lstat(name); err == nil && same(f, now) {
				return f, name, nil
			}
		}
		_ = f.Close() // it was removed and is empty
	}
}

func same(f *os.File, info fs.FileInfo) bool {
	own, err := f.Stat()
	return err == nil && os.SameFile(own, info)
}

// publish renames a complete file to its key. Deleting the last blob of a
// directory removes the directory, so it may be removed meanwhile.
func (d *Dir) publish(name, key string, ifAbsent bool) error {
	parent := path.Dir(key)
	for try := 0; ; try++ {
		if err := d.root.MkdirAll(parent, 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var err error
		if ifAbsent {
			err = d.root.Link(name, key)
		} else {
			err = d.root.Rename(name, key)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) && try < 100:
			continue
		case err != nil:
			return err
		}
		return d.sync(parent)
	}
}

// sync makes the names in a directory and its parents durable.
func (d *Dir) sync(dir string) error {
	for {
		f, err := d.root.Open(dir)
		if err == nil {
			err = f.Sync()
			_ = f.Close() // errors after reading do not matter
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if dir == "." {
			return nil
		}
		dir = path.Dir(dir)
	}
}

// Get reads a blob; see [Store].
func (d *Dir) Get(_ context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if err := ValidateKey(key); err != nil {
		return nil, err
	}
	f, err := d.root.Open(key)
	if err != nil {
		return nil, dirError("blob.get", key, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		_ = f.Close() // errors after reading do not matter
		return nil, dirError("blob.get", key, err)
	}
	if length < 0 || length > info.Size()-offset {
		length = max(0, info.Size()-offset)
	}
	return section{io.NewSectionReader(f, offset, length), f}, nil
}

type section struct {
	*io.SectionReader
	io.Closer
}

// Stat describes a blob; see [Store].
func (d *Dir) Stat(_ context.Context, key string) (Info, error) {
	if err := ValidateKey(key); err != nil {
		return Info{}, err
	}
	info, err := d.root.Lstat(key)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Info{}, dirError("blob.stat", key, err)
	}
	return Info{Key: key, Size: info.Size(), Modified: info.ModTime()}, nil
}

// List yields blobs; see [Store].
func (d *Dir) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		dir := "."
		if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
			dir = prefix[:i]
			if err := ValidateKey(dir); err != nil {
				yield(Info{}, err)
				return
			}
		}
		d.walk(ctx, dir, prefix, yield)
	}
}

// walk yields the blobs below dir whose keys begin with prefix. Keys are in
// byte order, where "a-b" comes before "a/b", so directories are sorted as if
// their names ended with a slash.
func (d *Dir) walk(ctx context.Context, dir, prefix string, yield func(Info, error) bool) bool {
	entries, err := fs.ReadDir(d.root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return yield(Info{}, dirError("blob.list", dir, err)) && false
	}
	name := func(e fs.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(name(a), name(b)) })
	for _, e := range entries {
		key := path.Join(dir, e.Name())
		switch {
		case e.Name()[0] == '.':
		case e.IsDir() && (strings.HasPrefix(key+"/", prefix) || strings.HasPrefix(prefix, key+"/")):
			if !d.walk(ctx, key, prefix, yield) {
				return false
			}
		case e.Type().IsRegular() && strings.HasPrefix(key, prefix):
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // deleted meanwhile
			}
			if err != nil {
				return yield(Info{}, dirError("blob.list", key, err)) && false
			}
			if !yield(Info{Key: key, Size: info.Size(), Modified: info.ModTime()}, nil) {
				return false
			}
		}
	}
	return true
}

// Delete removes a blob; see [Store].
func (d *Dir) Delete(_ context.Context, key string) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	if err := d.root.Remove(key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return dirError("blob.delete", key, err)
	}
	for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
		if d.root.Remove(dir) != nil {
			break // not empty
		}
	}
	return nil
}

// sweep removes files of killed writers.
func (d *Dir) sweep() error {
	entries, err := fs.ReadDir(d.root.FS(), pending)
	if err != nil {
		return dirError("blob.open", pending, err)
	}
	for _, e := range entries {
		name := path.Join(pending, e.Name())
		f, err := d.root.Open(name)
		if err != nil {
			continue // completed meanwhile
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = d.root.Remove(name) // another sweep may have removed it
		}
		_ = f.Close() // errors after reading do not matter
	}
	return nil
}

// reader fails when its context ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// dirError classifies a file system error. It returns others, such as the
// reader's, unchanged.
func dirError(op, key string, err error) error {
	var known *sandbox.Error
	var errno syscall.Errno
	switch {
	case err == nil || errors.As(err, &known) || !errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fail(sandbox.CodeNotFound, op, key, "no such blob", err)
	case errors.Is(err, fs.ErrExist):
		return fail(sandbox.CodeAlreadyExists, op, key, "already exists", err)
	case errno == syscall.ENOSPC, errno == syscall.EDQUOT:
		return fail(sandbox.CodeExhausted, op, key, "the disk is full", err)
	case errno == syscall.EISDIR, errno == syscall.ENOTDIR, errno == syscall.ENOTEMPTY:
		return fail(sandbox.CodeConflict, op, key, "a key cannot be the directory of another key", err)
	}
	return fail(sandbox.CodeUnavailable, op, key, "the directory cannot be used: "+errno.Error(), err)
}
