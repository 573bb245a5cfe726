package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-run/atoll/internal/image/registry"
	"github.com/atoll-run/atoll/sandbox"
)

// Blobs are named sequences of bytes that several stores share, such as those in
// a bucket. It must be safe for concurrent use.
type Blobs interface {
	// Get opens a blob, which the caller closes. A missing one is CodeNotFound.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// Put writes a blob of a size, and replaces an existing one.
	Put(ctx context.Context, key string, r io.Reader, size int64) error
	// Modified returns when a blob was written. A missing one is CodeNotFound.
	Modified(ctx context.Context, key string) (time.Time, error)
}

// Renewal is the age at which a blob is written again when it is read. So the age
// of a blob that is in use is little more, and an older one can be removed: see
// blob.Expire.
const Renewal = 7 * 24 * time.Hour

// Share makes the store look for what images consist of in blobs before it asks
// a registry, and put there what a registry gave to everybody. Then other stores
// need the registry only to learn the digest of a tag. Blobs are not trusted:
// all content is compared with its digest. Call it before the store is used.
func (s *Store) Share(blobs Blobs) {
	ctx, cancel := context.WithCancel(context.Background())
	s.shared = &shared{blobs: blobs, life: ctx, end: cancel, logger: s.opts.Logger.Warn}
}

// shared are the blobs that stores share.
type shared struct {
	blobs  Blobs
	life   context.Context
	end    context.CancelFunc
	logger func(msg string, args ...any)

	one     sync.Mutex // one upload at a time
	uploads sync.WaitGroup
}

// close cancels uploads. They are done again when the image is pulled again.
func (s *shared) close() {
	if s != nil {
		s.end()
		s.uploads.Wait()
	}
}

// put uploads content later. Nothing depends on its success. With had, it was read
// from there, and is only uploaded if it is old.
func (s *shared) put(key string, size int64, had bool, open func() (io.ReadCloser, error)) {
	s.uploads.Go(func() {
		s.one.Lock()
		defer s.one.Unlock()
		if had {
			if at, err := s.blobs.Modified(s.life, key); err == nil && time.Since(at) < Renewal {
				return
			}
		}
		r, err := open()
		if err == nil {
			err = errors.Join(s.blobs.Put(s.life, key, r, size), r.Close())
		}
		if err != nil && s.life.Err() == nil {
			s.logger("a part of an image cannot be shared with other machines", "part", key, "error", err)
		}
	})
}

// copyTo copies the content with a digest to w, and reports whether that is
// what was there.
func (s *shared) copyTo(ctx context.Context, key, digest string, size int64, w io.Writer) bool {
	r, err := s.blobs.Get(ctx, key)
	if err != nil {
		if sandbox.CodeOf(err) != sandbox.CodeNotFound && ctx.Err() == nil {
			s.logger("a part of an image cannot be read from where machines share it", "part", key, "error", err)
		}
		return false
	}
	defer r.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(r, size+1))
	if err == nil && n <= size && "sha256:"+hex.EncodeToString(sum.Sum(nil)) == digest {
		return true
	}
	if ctx.Err() == nil {
		s.logger("a part of an image is damaged where machines share it; the registry is asked", "part", key, "error", err)
	}
	return false
}

// origin is where the parts of an image of a registry come from.
type origin struct {
	repo   string
	dial   func() (*registry.Client, error) // connects once
	shared *shared                          // nil: there are none
	public bool                             // the registry gives them to everybody
	had    sync.Map                         // digests of the layers that were shared
}

// manifestKey is the key of a manifest. It has the repository, because a rule may
// trust one for what it serves.
func (o *origin) manifestKey(digest string) string {
	sum := sha256.Sum256([]byte(o.repo))
	return "manifests/" + hex.EncodeToString(sum[:]) + "/" + strings.TrimPrefix(digest, "sha256:")
}

func blobKey(digest string) string { return "blobs/" + strings.TrimPrefix(digest, "sha256:") }

// small returns content of at most limit bytes that machines share.
func (o *origin) small(ctx context.Context, key, digest string, limit int64) ([]byte, bool) {
	if _, ok := digestHex(digest); o.shared == nil || !ok {
		return nil, false
	}
	var b bytes.Buffer
	ok := o.shared.copyTo(ctx, key, digest, limit, &b)
	if ok {
		o.shared.put(key, int64(b.Len()), true, opener(b.Bytes()))
	}
	return b.Bytes(), ok
}

// share offers content to other machines, if a registry gives it to everybody.
func (o *origin) share(key func(digest string) string, digest string, data []byte) {
	sum := sha256.Sum256(data)
	if own := "sha256:" + hex.EncodeToString(sum[:]); o.shared != nil && o.public && (digest == "" || digest == own) {
		o.shared.put(key(own), int64(len(data)), false, opener(data))
	}
}

func opener(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

// Manifest is that of registry.Client.
func (o *origin) Manifest(ctx context.Context, ref string, limit int64) (data []byte, mediaType string, err error) {
	if data, ok := o.small(ctx, o.manifestKey(ref), ref, limit); ok {
		if m, err := v1.ParseManifest(bytes.NewReader(data)); err == nil && m.MediaType != "" {
			return data, string(m.MediaType), nil
		}
	}
	c, err := o.dial()
	if err != nil {
		return nil, "", err
	}
	if data, mediaType, err = c.Manifest(ctx, ref, limit); err == nil {
		digest := ""
		if _, ok := digestHex(ref); ok {
			digest = ref
		}
		o.share(o.manifestKey, digest, data)
	}
	return data, mediaType, err
}

// Bytes is that of registry.Client.
func (o *origin) Bytes(ctx context.Context, digest string, limit int64) ([]byte, error) {
	if data, ok := o.small(ctx, blobKey(digest), digest, limit); ok {
		return data, nil
	}
	c, err := o.dial()
	if err != nil {
		return nil, err
	}
	data, err := c.Bytes(ctx, digest, limit)
	if err == nil {
		o.share(blobKey, digest, data)
	}
	return data, err
}

// Blob is that of registry.Client.
func (o *origin) Blob(ctx context.Context, digest string, size int64, f *os.File, progress func(done int64)) error {
	if fi, err := f.Stat(); o.shared != nil && err == nil && fi.Size() == 0 {
		if o.shared.copyTo(ctx, blobKey(digest), digest, size, f) {
			o.had.Store(digest, true)
			progress(size)
			return nil
		}
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	c, err := o.dial()
	if err != nil {
		return err
	}
	return c.Blob(ctx, digest, size, f, progress)
}

// shareFile offers a downloaded layer to other machines.
func (o *origin) shareFile(digest, path string, size int64) {
	_, had := o.had.Load(digest)
	if o.shared != nil && (o.public || had) {
		o.shared.put(blobKey(digest), size, had, func() (io.ReadCloser, error) { return os.Open(path) })
	}
}
