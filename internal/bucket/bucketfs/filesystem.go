// Package bucketfs is a FUSE file system for an S3 bucket.
//
// An object is a file, and a common prefix of keys up to a slash is a
// directory. Writes are collected in an unnamed file and uploaded as a whole:
// when it is closed or synced, and otherwise a second after the last write,
// because the kernels of sandboxes keep files open long after programs have
// closed them. Until then other readers see the old object. Syncing a directory
// waits for all uploads.
//
// A bucket has no owners, modes, settable times, attributes, links or locks,
// and there are no permission checks. Changing an owner, a mode or a time
// succeeds without effect, because programs that unpack archives expect that.
// Links fail with ENOTSUP. Renaming a directory fails with EXDEV, so that mv
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
	// uploadDelay is the idle time before a file is uploaded.
	uploadDelay = time.Second
	// retry is the delay after a failed upload.
	retry = 10 * time.Second
	// maxSpools limits the files being written; each is an open file.
	maxSpools = 512
	// maxUploads limits concurrent uploads, and with them memory.
	maxUploads = 4
	// remember is how long the results of a listing are cached.
	remember = time.Second
	// maxRemembered is the maximum number of cached results.
	maxRemembered = 8192
	// maxKey is the maximum length of an S3 key in bytes.
	maxKey = 1024
)

// FileSystem is a bucket with the files being written to it.
type FileSystem struct {
	bucket *Bucket
	dir    *os.File        // directory for spools
	most   int64           // limit for all spools in bytes
	life   context.Context // canceled when uploads must stop

	uploads chan struct{} // semaphore for uploads

	mu     sync.Mutex
	files  map[string]*file // files being written, by key
	spools int
	used   int64 // bytes in spools
	seen   map[string]sighting
}

// sighting is a cached result of a listing.
type sighting struct {
	object
	until time.Time
}

// New returns the file system of a bucket. Spools are created in dir and
// limited to most bytes in total; beyond that, writes fail with ENOSPC. Uploads
// stop when ctx ends.
func New(ctx context.Context, b *Bucket, dir *os.File, most int64) *FileSystem {
	return &FileSystem{
		bucket: b, dir: dir, most: most, life: ctx, uploads: make(chan struct{}, maxUploads),
		files: map[string]*file{}, seen: map[string]sighting{},
	}
}

// kind is the type of what a key refers to.
type kind int

const (
	regular kind = iota
	directory
)

// stat returns what a key refers to. An object hides the keys below it.
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
			continue // not a valid file name, or the directory's marker
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

// maxNames limits the size of a listed directory, which is held in memory.
const maxNames = 1_000_000

// proper reports whether an element of a key is a valid file name.
func proper(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && !strings.ContainsAny(name, "/\x00")
}

// sight caches a result of a listing, because the kernel will look up each
// file.
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

// forget removes a changed key from the cache.
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

// acquire returns the file of a key for writing. The caller releases it.
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

// drop removes a file that has no writer and is uploaded.
func (sys *FileSystem) drop(f *file) {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	if f.writers == 0 && !f.dirty.Load() && sys.files[f.key] == f {
		delete(sys.files, f.key)
	}
}

// disown removes the name of a file, and returns the file.
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

// mkdir creates a directory by creating its marker object.
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

// rmdir removes an empty directory.
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

// rename renames a file by copying the object. Writers wait.
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

// rekey changes the key of an open file.
func (sys *FileSystem) rekey(from, to string) {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	if f := sys.files[from]; f != nil {
		delete(sys.files, from)
		f.key = to
		sys.files[to] = f
	}
}
