// Package bucketfs shows a bucket of an S3 service as a file system, by FUSE.
//
// An object is a file, and what keys have in common up to a slash a directory.
// What is written is collected in a file without a name, and becomes the object
// as a whole: when it is closed or synced, and otherwise a second after the last
// write, because the kernels of sandboxes keep files open long after programs
// have closed them. Until then the object is what it was, for everybody. Syncing
// a directory waits for everything.
//
// A bucket has no owners, modes, times to set, attributes, links or locks.
// Whoever gets here may do everything; changing an owner, a mode or a time
// succeeds and changes nothing, as programs that unpack archives want it; links
// are ENOTSUP. A directory cannot be renamed, which is EXDEV, so that mv copies.
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

// sighting is what a listing told.
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
func (fs *FileSystem) stat(ctx context.Context, key string) (object, kind, error) {
	if key == "" {
		return object{}, directory, nil
	}
	if f := fs.writing(key); f != nil {
		o, err := f.stat(ctx)
		return o, regular, err
	}
	if o, ok := fs.saw(key); ok {
		return o, regular, nil
	}
	o, err := fs.bucket.head(ctx, key)
	if err == nil {
		return o, regular, nil
	}
	if err != syscall.ENOENT {
		return o, regular, err
	}
	if fs.writingBelow(key) {
		return object{}, directory, nil
	}
	there, err := fs.bucket.any(ctx, key+"/")
	if err == nil && !there {
		err = syscall.ENOENT
	}
	return object{}, directory, err
}

// names lists a directory, each name once.
func (fs *FileSystem) names(ctx context.Context, dir string) (map[string]kind, error) {
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	names := map[string]kind{}
	fs.mu.Lock()
	for key := range fs.files {
		rest, below := strings.CutPrefix(key, prefix)
		if name, _, deeper := strings.Cut(rest, "/"); below && deeper {
			names[name] = directory
		} else if below {
			names[name] = regular
		}
	}
	fs.mu.Unlock()
	for o, err := range fs.bucket.list(ctx, prefix, 0) {
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
			fs.sight(o)
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
func (fs *FileSystem) sight(o object) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.seen) >= maxRemembered {
		clear(fs.seen)
	}
	fs.seen[o.key] = sighting{o, time.Now().Add(remember)}
}

func (fs *FileSystem) saw(key string) (object, bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s, ok := fs.seen[key]
	if ok && time.Now().After(s.until) {
		delete(fs.seen, key)
		ok = false
	}
	return s.object, ok
}

// forget drops what was remembered of a key that was changed.
func (fs *FileSystem) forget(key string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.seen, key)
}

func (fs *FileSystem) writing(key string) *file {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.files[key]
}

func (fs *FileSystem) writingBelow(dir string) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for key := range fs.files {
		if strings.HasPrefix(key, dir+"/") {
			return true
		}
	}
	return false
}

// acquire returns the file of a key for a writer, who releases it.
func (fs *FileSystem) acquire(key string) *file {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.files[key]
	if f == nil {
		f = &file{fs: fs, key: key}
		fs.files[key] = f
	}
	f.writers++
	return f
}

// drop forgets a file that nobody writes to and that the bucket has.
func (fs *FileSystem) drop(f *file) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.writers == 0 && !f.dirty.Load() && fs.files[f.key] == f {
		delete(fs.files, f.key)
	}
}

// disown makes a file one without a name, and returns it.
func (fs *FileSystem) disown(key string) *file {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.files[key]
	delete(fs.files, key)
	return f
}

// Flush uploads everything that was written before, and returns the first error.
func (fs *FileSystem) Flush(ctx context.Context) error {
	fs.mu.Lock()
	all := make([]*file, 0, len(fs.files))
	for _, f := range fs.files {
		all = append(all, f)
	}
	fs.mu.Unlock()
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
func (fs *FileSystem) unlink(ctx context.Context, key string) error {
	if f := fs.disown(key); f != nil {
		f.orphan()
	}
	defer fs.forget(key)
	return fs.bucket.remove(ctx, key)
}

// mkdir makes a directory, which is an object that marks it.
func (fs *FileSystem) mkdir(ctx context.Context, key string) error {
	_, _, err := fs.stat(ctx, key)
	switch {
	case err == nil:
		return syscall.EEXIST
	case err != syscall.ENOENT:
		return err
	}
	return fs.bucket.put(ctx, key+"/", nil, 0)
}

// rmdir removes a directory with nothing in it.
func (fs *FileSystem) rmdir(ctx context.Context, key string) error {
	if fs.writingBelow(key) {
		return syscall.ENOTEMPTY
	}
	for o, err := range fs.bucket.list(ctx, key+"/", 2) {
		if err != nil {
			return err
		}
		if o.key != key+"/" {
			return syscall.ENOTEMPTY
		}
	}
	return fs.bucket.remove(ctx, key+"/")
}

// rename moves a file: what the bucket has is copied there. Who writes to it
// waits.
func (fs *FileSystem) rename(ctx context.Context, from, to string) error {
	if f := fs.writing(from); f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err := f.uploadLocked(ctx); err != nil {
			return err
		}
	}
	if err := fs.bucket.copy(ctx, from, to); err != nil {
		return err
	}
	if old := fs.disown(to); old != nil {
		old.orphan()
	}
	fs.rekey(from, to)
	fs.forget(from)
	fs.forget(to)
	return fs.bucket.remove(ctx, from)
}

// rekey gives whoever writes to a file its new name.
func (fs *FileSystem) rekey(from, to string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.files[from]; f != nil {
		delete(fs.files, from)
		f.key = to
		fs.files[to] = f
	}
}
