package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/registry"
)

// downloads is the number of layers of one image downloaded at once.
const downloads = 3

// registrySource is an image of a registry.
type registrySource struct {
	store *Store
	ref   *reference
	login Login // nil: use the store's credentials
}

func (r *registrySource) stamp(context.Context) (string, error) { return "", nil }

// load gets the content of the image from the registry. Layers are downloaded
// only if the file system has to be built.
func (r *registrySource) load(ctx context.Context, j *job) (*content, error) {
	o := r.store.opts
	permit := r.store.permit(ctx)
	switch {
	case r.login != nil:
		o.Keychain = r.login
	case permit != nil:
		o.Keychain = authn.NewMultiKeychain() // do not use the owner's credentials for others
	}
	client := &origin{repo: r.ref.repo.Context().Name(), public: permit != nil, dial: sync.OnceValues(func() (*registry.Client, error) {
		return registry.New(ctx, r.ref.repo.Context(), registry.Options{
			Transport: o.Transport, Keychain: o.Keychain, PlainHTTP: o.PlainHTTP, StallTimeout: o.StallTimeout, RetryDelay: o.RetryDelay, Permit: permit,
		})
	})}
	if r.login == nil {
		client.shared = r.store.shared
	}
	res, err := newResolver(r.ref.name, j.platform, o.Limits, func(ctx context.Context, d v1.Descriptor) ([]byte, error) {
		if d.MediaType.IsImage() || d.MediaType.IsIndex() {
			data, _, err := client.Manifest(ctx, d.Digest.String(), o.Limits.Manifest)
			return data, err
		}
		return client.Bytes(ctx, d.Digest.String(), o.Limits.Manifest)
	})
	if err != nil {
		return nil, err
	}
	data, mediaType, err := client.Manifest(ctx, r.ref.repo.Identifier(), o.Limits.Manifest)
	if err != nil {
		return nil, err
	}
	// The digest is computed from the content, not taken from a header.
	sum := sha256.Sum256(data)
	d := v1.Descriptor{MediaType: types.MediaType(mediaType), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
	if want, ok := r.ref.repo.(name.Digest); ok && want.DigestStr() != d.Digest.String() {
		return nil, res.invalid("the registry serves content that does not match the requested digest")
	}
	found, err := res.resolve(ctx, d, data)
	if err != nil {
		return nil, err
	}
	c, err := res.content(found)
	if err != nil {
		return nil, err
	}
	if r.login != nil {
		r.passing(c, client)
		return c, nil
	}
	c.signatures = r.signatures(ctx, client, res, found)
	r.layers(c, client, j)
	return c, nil
}

// layers makes the layers of c come from the store's blobs, which prepare
// downloads.
func (r *registrySource) layers(c *content, client *origin, j *job) {
	first := map[string]int{}
	for i := range c.layers {
		h := strings.TrimPrefix(c.layers[i].digest, "sha256:")
		path := r.store.blobPath(h)
		c.layers[i].open = func(context.Context) (io.ReadCloser, error) { return os.Open(path) }
		c.layers[i].stored = true
		c.layers[i].spoiled = func() { _ = os.Remove(path) }
		if _, ok := first[h]; !ok {
			first[h] = i
			c.blobs = append(c.blobs, h)
		}
	}
	c.prepare = func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(downloads)
		for _, h := range c.blobs {
			g.Go(func() error {
				l := c.layers[first[h]]
				p := Progress{Phase: PhaseDownloading, Layer: first[h] + 1, Layers: len(c.layers), Digest: l.digest, Total: l.size}
				return r.store.download(ctx, client, h, p, j.progress)
			})
		}
		return g.Wait()
	}
}

// download downloads one blob to the store, unless it is there.
func (s *Store) download(ctx context.Context, client *origin, hex string, p Progress, progress func(Progress)) error {
	l, err := s.lock(ctx, "blob-"+hex, unix.LOCK_EX, func() { progress(Progress{Phase: PhaseWaiting}) })
	if err != nil {
		return err
	}
	defer l.Close()
	report := func(done int64) { p.Done = done; progress(p) }
	fi, err := os.Stat(s.blobPath(hex))
	if err == nil && fi.Size() == p.Total {
		report(p.Total)
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(s.path("partial", hex), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	part := &tempFile{File: f, done: true} // kept if the download fails
	defer f.Close()
	var reported int64
	report(0)
	err = client.Blob(ctx, p.Digest, p.Total, f, func(done int64) {
		if done-reported >= reportEvery/4 || done < reported || done == p.Total {
			reported = done
			report(done)
		}
	})
	if err != nil {
		return err
	}
	if err := part.publish(s.blobPath(hex)); err != nil {
		return err
	}
	client.shareFile(p.Digest, s.blobPath(hex), p.Total)
	return nil
}
