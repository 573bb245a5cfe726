package bucketfs

import (
	"context"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// file is a file being written: its content is in a spool until it is uploaded.
type file struct {
	fs      *FileSystem
	key     string // guarded by fs.mu
	writers int    // guarded by fs.mu

	dirty atomic.Bool // the spool has changes that were not uploaded

	mu       sync.Mutex
	spool    *os.File // nil: everything is uploaded
	size     int64
	modified time.Time
	orphaned bool // it was removed and is never uploaded
	later    *time.Timer
}

// name returns the key of the file, which may change.
func (f *file) name() string {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.key
}

func (f *file) stat(ctx context.Context) (object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.spool != nil:
		return object{key: f.name(), size: f.size, modified: f.modified}, nil
	case f.orphaned:
		return object{}, syscall.ESTALE
	}
	return f.fs.bucket.head(ctx, f.name())
}

// open creates the spool if there is none, with the object's content unless
// empty is set. The caller holds f.mu.
func (f *file) open(ctx context.Context, empty bool) error {
	if f.spool != nil {
		return nil
	}
	if f.orphaned {
		return syscall.ESTALE
	}
	if err := f.fs.reserveSpool(); err != nil {
		return err
	}
	fd, err := unix.Openat(int(f.fs.dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		f.fs.releaseSpool(0)
		return err
	}
	f.spool, f.size, f.modified = os.NewFile(uintptr(fd), "spool"), 0, time.Now()
	if !empty {
		err = f.fetch(ctx)
	}
	if err != nil {
		f.discard()
	}
	return err
}

// fetch reads the object into the spool.
func (f *file) fetch(ctx context.Context) error {
	o, err := f.fs.bucket.head(ctx, f.name())
	if err == syscall.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	if err := f.grow(o.size); err != nil {
		return err
	}
	body, err := f.fs.bucket.get(ctx, o, 0)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // errors after reading do not matter
	n, err := io.Copy(f.spool, io.LimitReader(body, o.size))
	if err != nil {
		return errno(err)
	}
	if n != o.size {
		return syscall.EIO
	}
	f.modified = o.modified
	return nil
}

// grow reserves space for a size. The caller holds f.mu.
func (f *file) grow(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.used+size-f.size > f.fs.most {
		return syscall.ENOSPC
	}
	f.fs.used += size - f.size
	f.size = size
	return nil
}

// discard removes the spool. The caller holds f.mu.
func (f *file) discard() {
	if f.spool == nil {
		return
	}
	_ = f.spool.Close() // it has no name, so this removes it
	f.fs.releaseSpool(f.size)
	f.spool, f.size = nil, 0
	f.dirty.Store(false)
	if f.later != nil {
		f.later.Stop()
	}
}

func (sys *FileSystem) reserveSpool() error {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	if sys.spools >= maxSpools {
		return syscall.ENFILE
	}
	sys.spools++
	return nil
}

func (sys *FileSystem) releaseSpool(size int64) {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	sys.spools--
	sys.used -= size
}

// room makes room for one more spool by uploading others, if necessary.
func (sys *FileSystem) room(ctx context.Context) error {
	sys.mu.Lock()
	full := sys.spools >= maxSpools
	sys.mu.Unlock()
	if !full {
		return nil
	}
	return sys.Flush(ctx)
}

// change calls do to write to the spool, and schedules the upload. size is the
// minimum size of the file afterwards.
func (f *file) change(ctx context.Context, empty bool, size int64, do func(*os.File) error) error {
	if err := f.fs.room(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(ctx, empty); err != nil {
		return err
	}
	if size > f.size {
		if err := f.grow(size); err != nil {
			return err
		}
	}
	f.modified = time.Now()
	if f.orphaned {
		return do(f.spool)
	}
	f.dirty.Store(true)
	f.schedule(uploadDelay)
	return do(f.spool)
}

// schedule schedules the upload for when the file is idle. The caller holds
// f.mu.
func (f *file) schedule(after time.Duration) {
	if f.later != nil {
		f.later.Reset(after)
		return
	}
	f.later = time.AfterFunc(after, func() { _ = f.upload(f.fs.life) }) // Fsync returns the error
}

func (f *file) write(ctx context.Context, data []byte, off int64) (int, error) {
	n := 0
	err := f.change(ctx, false, off+int64(len(data)), func(spool *os.File) (err error) {
		n, err = spool.WriteAt(data, off)
		return err
	})
	return n, err
}

// truncate sets the size of the file. For size 0 the object is not fetched.
func (f *file) truncate(ctx context.Context, size int64) error {
	return f.change(ctx, size == 0, size, func(spool *os.File) error {
		if size < f.size {
			if err := f.grow(size); err != nil {
				return err
			}
		}
		return spool.Truncate(size)
	})
}

// read reads from the spool, and reports whether there is one.
func (f *file) read(dest []byte, off int64) (n int, there bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spool == nil {
		if f.orphaned {
			err = syscall.ESTALE
		}
		return 0, f.orphaned, err
	}
	n, err = f.spool.ReadAt(dest, off)
	if err == io.EOF {
		err = nil
	}
	return n, true, err
}

// upload uploads changes, if there are any.
func (f *file) upload(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.uploadLocked(ctx)
}

func (f *file) uploadLocked(ctx context.Context) error {
	if !f.dirty.Load() {
		return nil
	}
	select {
	case f.fs.uploads <- struct{}{}:
	case <-ctx.Done():
		return errno(ctx.Err())
	}
	defer func() { <-f.fs.uploads }()
	key := f.name()
	if err := f.fs.bucket.put(ctx, key, f.spool, f.size); err != nil {
		if f.fs.life.Err() == nil {
			f.schedule(retry)
		}
		return err
	}
	f.fs.forget(key)
	f.discard()
	f.fs.drop(f)
	return nil
}

// orphan makes the file accessible only to those who have it open.
func (f *file) orphan() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orphaned = true
	f.dirty.Store(false)
	if f.later != nil {
		f.later.Stop()
	}
	if f.idle() {
		f.discard()
	}
}

// idle reports whether the file is not open.
func (f *file) idle() bool {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.writers == 0
}

// release releases an acquired file, and uploads changes of the last writer.
func (f *file) release() {
	f.fs.mu.Lock()
	f.writers--
	f.fs.mu.Unlock()
	_ = f.upload(f.fs.life) // it is retried; Fsync returns the error
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.idle() && f.orphaned {
		f.discard()
	}
	f.fs.drop(f)
}
