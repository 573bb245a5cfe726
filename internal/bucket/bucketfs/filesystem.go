// Package bucketfs shows a bucket of an S3 service as a file system, by FUSE.
//
// An object is a file, and what keys have in common up to a slash a directory.
// Writes are collected in an unnamed file and uploaded as a whole: when it is
// closed or synced, and otherwise a second after the last write, because the
// kernels of sandboxes keep files open long after programs have closed them.
// Until then everyone sees the old object. Syncing a directory waits for
// everything.
//
// A bucket has no owners, modes, times to set, attributes, links or locks.
// There are no permission checks. Changing an owner, a mode or a time succeeds
// without effect, because programs that unpack archives expect that. Links fail
// with ENOTSUP. A directory cannot be renamed, which is EXDEV, so that mv
// copies.
package bucketfs

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// settle is how long a file is left alone before it is uploaded.
	settle = time.Second
	// retry is how long after a failed upload the next is tried.
	retry = 10 * time.Second
	// maxSpools bounds the files that are being written, each an open file.
	maxSpools = 512
	// maxUploads bounds the uploads at a time, and with it memory.
	maxUploads = 4
	// remember is how long what a listing told of an object is believed.
	remember = time.Second
	// maxRemembered bounds how much that is.
	maxRemembered = 8192
	// maxKey is the longest key of S3, in bytes.
	maxKey = 1024
)

// FileSystem is a bucket with what is being written to it.
type FileSystem struct {
	bucket *Bucket
	dir    *os.File        // where spools are made
	most   int64           // bytes of all spools together
	life   context.Context // ends when nothing is to be uploaded any more

	uploads chan struct{} // a place for each upload

	mu     sync.Mutex
	files  map[string]*file // what is being written, by its key
	spools int
	used   int64 // bytes of spools
	seen   map[string]sighting
}

// sighting is the result of a listing.
type sighting struct {
	object
	until time.Time
}

// New returns the file system of a bucket. Spools are made in dir, together at
// most so many bytes: what is over is ENOSPC. Uploads end with ctx.
func New(ctx context.Context, b *Bucket, dir *os.File, most int64) *FileSystem {
	return &FileSystem{
		bucket: b, dir: dir, most: most, life: ctx, uploads: make(chan struct{}, maxUploads),
		files: map[string]*file{}, seen: map[string]sighting{},
	}
}

// kind is what a key stands for.
type kind int

const (
	regular kind = iota
	directory
)

// stat says what a key stands for. Where there are both an object and keys below
// it, the object hides them.
func (sys *FileSystem) stat(ctx context.Context, key string) (object, kind, error) {
	if key == "" {
		return object{}, directory, nil
	}
	if f := sys.writing(key); f != nil {
		o, err := f.stat(ctx)
		return o, regular, err
	}
	if o, ok := sys.saw(key); ok {
		return o, regular, nil
	}
	o, err := sys.bucket.head(ctx, key)
	if err == nil {
		return o, regular, nil
	}
	if err != syscall.ENOENT {
		return o, regular, err
	}
	if sys.writingBelow(key) {
		return object{}, directory, nil
	}
	there, err := sys.bucket.any(ctx, key+"/")
	if err == nil && !there {
		err = syscall.ENOENT
	}
	return object{}, directory, err
}

// names lists a directory, each name once.
func (sys *FileSystem) names(ctx context.Context, dir string) (map[string]kind, error) {
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	names := map[string]kind{}
	sys.mu.Lock()
	for key := range sys.files {
		rest, below := strings.CutPrefix(key, prefix)
		if name, _, deeper := strings.Cut(rest, "/"); below && deeper {
			names[name] = directory
		} else if below {
			names[name] = regular
		}
	}
	sys.mu.Unlock()
	for o, err := range sys.bucket.list(ctx, prefix, 0) {
		if err != nil {
			return nil, err
		}
		name, isDir := strings.CutSuffix(strings.TrimPrefix(o.key, prefix), "/")
		if !proper(name) {
			continue // it cannot be shown, or is what marks the directory
		}
		if len(names) >= maxNames {
			return nil, syscall.EFBIG
		}
		if !isDir {
			names[name] = regular
			sys.sight(o)
		} else if _, hidden := names[name]; !hidden {
			names[name] = directory
		}
	}
	return names, nil
}

// maxNames bounds a directory that is listed, which is held in memory.
const maxNames = 1_000_000

// proper reports whether an element of a key can be the name of a file.
func proper(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && !strings.ContainsAny(name, "/\x00")
}

// sight remembers what a listing told, since a look at each file follows.
func (sys *FileSystem) sight(o object) {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	if len(sys.seen) >= maxRemembered {
		clear(sys.seen)
	}
	sys.seen[o.key] = sighting{o, time.Now().Add(remember)}
}

func (sys *FileSystem) saw(key string) (object, bool) {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	s, ok := sys.seen[key]
	if ok && time.Now().After(s.until) {
		delete(sys.seen, key)
		ok = false
	}
	return s.object, ok
}

// forget drops what was remembered of a key that was changed.
func (sys *FileSystem) forget(key string) {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	delete(sys.seen, key)
}

func (sys *FileSystem) writing(key string) *file {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	return sys.files[key]
}

func (sys *FileSystem) writingBelow(dir string) bool {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	for key := range sys.files {
		if strings.HasPrefix(key, dir+"/") {
			return true
		}
	}
	return false
}

// acquire returns the file of a key for a writer, who releases it.
func (sys *FileSystem) acquire(key string) *file {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	f := sys.files[key]
	if f == nil {
		f = &file{fs: sys, key: key}
		sys.files[key] = f
	}
	f.writers++
	return f
}

// drop forgets a file that nobody writes to and that the bucket has.
func (sys *FileSystem) drop(f *file) {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	if f.writers == 0 && !f.dirty.Load() && sys.files[f.key] == f {
		delete(sys.files, f.key)
	}
}

// disown makes a file one without a name, and returns it.
func (sys *FileSystem) disown(key string) *file {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	f := sys.files[key]
	delete(sys.files, key)
	return f
}

// Flush uploads everything that was written before, and returns the first error.
func (sys *FileSystem) Flush(ctx context.Context) error {
	sys.mu.Lock()
	all := make([]*file, 0, len(sys.files))
	for _, f := range sys.files {
		all = append(all, f)
	}
	sys.mu.Unlock()
	failed := make(chan error, len(all))
	for _, f := range all {
		go func() { failed <- f.upload(ctx) }()
	}
	var first error
	for range all {
		if err := <-failed; first == nil {
			first = err
		}
	}
	return first
}

// unlink removes a file.
func (sys *FileSystem) unlink(ctx context.Context, key string) error {
	if f := sys.disown(key); f != nil {
		f.orphan()
	}
	defer sys.forget(key)
	return sys.bucket.remove(ctx, key)
}

// mkdir makes a directory, which is an object that marks it.
func (sys *FileSystem) mkdir(ctx context.Context, key string) error {
	_, _, err := sys.stat(ctx, key)
	switch {
	case err == nil:
		return syscall.EEXIST
	case err != syscall.ENOENT:
		return err
	}
	return sys.bucket.put(ctx, key+"/", nil, 0)
}

// rmdir removes a directory with nothing in it.
func (sys *FileSystem) rmdir(ctx context.Context, key string) error {
	if sys.writingBelow(key) {
		return syscall.ENOTEMPTY
	}
	for o, err := range sys.bucket.list(ctx, key+"/", 2) {
		if err != nil {
			return err
		}
		if o.key != key+"/" {
			return syscall.ENOTEMPTY
		}
	}
	return sys.bucket.remove(ctx, key+"/")
}

// rename moves a file: what the bucket has is copied there. Writers wait.
func (sys *FileSystem) rename(ctx context.Context, from, to string) error {
	if f := sys.writing(from); f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err := f.uploadLocked(ctx); err != nil {
			return err
		}
	}
	if err := sys.bucket.copy(ctx, from, to); err != nil {
		return err
	}
	if old := sys.disown(to); old != nil {
		old.orphan()
	}
	sys.rekey(from, to)
	sys.forget(from)
	sys.forget(to)
	return sys.bucket.remove(ctx, from)
}

// rekey gives whoever writes to a file its new name.
func (sys *FileSystem) rekey(from, to string) {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	if f := sys.files[from]; f != nil {
		delete(sys.files, from)
		f.key = to
		sys.files[to] = f
	}
}
