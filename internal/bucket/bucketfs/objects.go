package bucketfs

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
)

// lookTimeout limits requests without content, because callers in the kernel
// block.
const lookTimeout = 30 * time.Second

// Bucket is an S3 bucket, or the part of it below a prefix. Its methods return
// errors of type syscall.Errno.
type Bucket struct {
	Client *minio.Client
	Name   string
	Prefix string // keys begin with it and a slash; may be empty
}

// object describes an object. A key that ends with a slash is a common prefix:
// a directory.
type object struct {
	key      string
	size     int64
	modified time.Time
	etag     string
}

func (b *Bucket) full(key string) string {
	if b.Prefix == "" {
		return key
	}
	return b.Prefix + "/" + key
}

// Check verifies that the bucket can be listed.
func (b *Bucket) Check(ctx context.Context) error {
	_, err := b.any(ctx, "")
	return err
}

func (b *Bucket) head(ctx context.Context, key string) (object, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	o, err := b.Client.StatObject(ctx, b.Name, b.full(key), minio.StatObjectOptions{})
	return object{key, o.Size, o.LastModified, o.ETag}, errno(err)
}

// list yields the objects and directories directly below a prefix, which is
// empty or ends with a slash.
func (b *Bucket) list(ctx context.Context, prefix string, most int) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stuck := time.AfterFunc(lookTimeout, cancel)
		defer stuck.Stop()
		above := b.full("")
		for o := range b.Client.ListObjectsIter(ctx, b.Name, minio.ListObjectsOptions{Prefix: b.full(prefix), MaxKeys: most}) {
			if o.Err != nil {
				yield(object{}, errno(o.Err))
				return
			}
			if !yield(object{strings.TrimPrefix(o.Key, above), o.Size, o.LastModified, o.ETag}, nil) {
				return
			}
			stuck.Reset(lookTimeout)
		}
	}
}

// any reports whether a key begins with a prefix.
func (b *Bucket) any(ctx context.Context, prefix string) (bool, error) {
	for _, err := range b.list(ctx, prefix, 1) {
		return err == nil, err
	}
	return false, nil
}

// get reads an object from an offset. If the object was replaced since it was
// listed, get returns ESTALE.
func (b *Bucket) get(ctx context.Context, o object, offset int64) (io.ReadCloser, error) {
	var opts minio.GetObjectOptions
	if err := opts.SetMatchETag(o.etag); err != nil {
		return nil, syscall.EIO
	}
	if offset > 0 {
		if err := opts.SetRange(offset, 0); err != nil {
			return nil, syscall.EINVAL
		}
	}
	body, _, _, err := minio.Core{Client: b.Client}.GetObject(ctx, b.Name, b.full(o.key), opts)
	if err != nil {
		return nil, errno(err)
	}
	return body, nil
}

// put replaces an object with a whole file.
func (b *Bucket) put(ctx context.Context, key string, f *os.File, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout+time.Duration(size/slowest)*time.Second)
	defer cancel()
	// The library can only retry a reader that can seek, for example after the
	// service closed an idle connection.
	var content io.ReadSeeker = strings.NewReader("")
	if f != nil {
		content = io.NewSectionReader(f, 0, size)
	}
	_, err := b.Client.PutObject(ctx, b.Name, b.full(key), content, size, minio.PutObjectOptions{
		ContentType: "application/octet-stream", PartSize: partSize, NumThreads: partsAtATime,
	})
	return errno(err)
}

// An upload buffers one part per thread in memory.
const (
	partSize     = 16 << 20
	partsAtATime = 2
)

// slowest is the minimum rate of an upload, in bytes per second. A slower one
// is canceled and retried.
const slowest = 64 << 10

// copy copies an object within the service.
func (b *Bucket) copy(ctx context.Context, from, to string) error {
	_, err := b.Client.ComposeObject(ctx, minio.CopyDestOptions{Bucket: b.Name, Object: b.full(to)}, minio.CopySrcOptions{Bucket: b.Name, Object: b.full(from)})
	return errno(err)
}

func (b *Bucket) remove(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err := errno(b.Client.RemoveObject(ctx, b.Name, b.full(key), minio.RemoveObjectOptions{}))
	if err == syscall.ENOENT {
		return nil
	}
	return err
}

// errno converts an error to a syscall.Errno.
func errno(err error) error {
	if err == nil {
		return nil
	}
	var known syscall.Errno
	switch {
	case errors.As(err, &known) && known == syscall.ENOSPC:
		return known
	case errors.Is(err, context.Canceled):
		return syscall.EINTR
	case errors.Is(err, context.DeadlineExceeded):
		return syscall.ETIMEDOUT
	}
	switch minio.ToErrorResponse(err).StatusCode {
	case http.StatusNotFound:
		return syscall.ENOENT
	case http.StatusForbidden, http.StatusUnauthorized:
		return syscall.EACCES
	case http.StatusPreconditionFailed:
		return syscall.ESTALE
	case http.StatusInsufficientStorage:
		return syscall.ENOSPC
	}
	return syscall.EIO
}

// number returns the errno for the kernel.
func number(err error) syscall.Errno {
	var known syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &known):
		return known
	}
	return syscall.EIO
}
