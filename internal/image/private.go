package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/registry"
	"github.com/atoll-run/atoll/sandbox"
)

// Login returns credentials for a registry. It is a function, so that the
// password cannot appear in logs or records.
type Login func() (username, password string)

// ECRLogin exchanges AWS keys for a login to the ECR registry of their account, which
// the image must be in.
func (s *Store) ECRLogin(ctx context.Context, image, accessKey string, secret func() string, region string) (Login, error) {
	keys := registry.AWSKeys{AccessKey: accessKey, Secret: secret, Region: region, Image: image, Endpoint: s.opts.ECR}
	username, password, err := registry.ECRLogin(ctx, keys, registry.Options{
		Transport: s.opts.Transport, PlainHTTP: s.opts.PlainHTTP, StallTimeout: s.opts.StallTimeout, Permit: s.permit(ctx),
	})
	if err != nil {
		return nil, err
	}
	return func() (string, string) { return username, password }, nil
}

// Private returns an image from a registry that needs the caller's login, under
// a name that is not a reference. Other tenants cannot use the image, neither
// by its reference nor by the registry's digests, because it is stored under a
// digest of its files and its compressed layers are not kept. The registry is
// contacted every time. An unchanged image is not downloaded again.
func (s *Store) Private(ctx context.Context, name, ref string, login Login) (*Image, error) {
	const op = "image.get"
	r, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	if r.kind != kindRegistry {
		return nil, fail(sandbox.CodeInvalid, op, ref, "", "a login is for an image of a registry")
	}
	platform, err := parsePlatform("")
	if err != nil {
		return nil, err
	}
	j := &job{s: s, ref: &reference{kind: kindDir, name: name}, as: name, platform: platform, progress: serialized(nil)}
	img, err := j.private(ctx, &registrySource{store: s, ref: r, login: login})
	return img, classify(op, r.name, err)
}

func (j *job) private(ctx context.Context, src *registrySource) (*Image, error) {
	s := j.s
	gc, err := s.lock(ctx, lockGC, unix.LOCK_SH, nil)
	if err != nil {
		return nil, err
	}
	defer gc.Close()
	own, err := s.lock(ctx, "ref-"+refFile(j.as, j.platform), unix.LOCK_EX, nil)
	if err != nil {
		return nil, err
	}
	defer own.Close()
	c, err := src.load(ctx, j)
	if err != nil {
		return nil, err
	}
	// The registry gave the caller this manifest, so the caller may use the image
	// built from it.
	if rec, err := s.readRef(j.as, j.platform); err == nil && rec.Stamp == c.digest {
		if img, err := s.ready(rec.Digest, j.as); !errors.Is(err, fs.ErrNotExist) {
			return img, err
		}
	}
	for {
		built, err := s.buildPrivate(ctx, c, j.progress)
		if err != nil {
			return nil, err
		}
		img, err := j.record(ctx, c, derivedDigest(built.layers[0], c), built, c.digest)
		if !errors.Is(err, errRemoved) {
			return img, err
		}
	}
}

// buildPrivate is buildRootfs, but names the file system by a hash of its
// content, which others cannot know.
func (s *Store) buildPrivate(ctx context.Context, c *content, progress func(Progress)) (rootfs, error) {
	tmp, _, size, err := s.writeLayer(ctx, c, nil, progress)
	if err != nil {
		return rootfs{}, err
	}
	defer tmp.discard()
	sum := sha256.New()
	fmt.Fprintf(sum, "atoll private rootfs %d\n", recordVersion)
	if _, err := io.Copy(sum, io.NewSectionReader(tmp, 0, size)); err != nil {
		return rootfs{}, err
	}
	key := hex.EncodeToString(sum.Sum(nil))
	return rootfs{[]string{key}, size}, s.keepLayer(tmp, key)
}

// passing makes the layers of c come from the registry each time, without
// keeping them.
func (r *registrySource) passing(c *content, client *origin) {
	for i := range c.layers {
		l := &c.layers[i]
		l.stored = true // Blob verifies them
		l.open = func(ctx context.Context) (io.ReadCloser, error) {
			f, err := r.store.createTemp()
			if err != nil {
				return nil, err
			}
			err = client.Blob(ctx, l.digest, l.size, f.File, func(int64) {})
			if err == nil {
				_, err = f.Seek(0, io.SeekStart)
			}
			if err != nil {
				f.discard()
				return nil, err
			}
			return spent{f}, nil
		}
	}
}

// spent is a temporary file that is removed when it is closed.
type spent struct{ *tempFile }

func (s spent) Close() error {
	s.discard()
	return nil
}

// Resolve implements authn.Keychain. The login is only used for one registry.
func (l Login) Resolve(authn.Resource) (authn.Authenticator, error) {
	username, password := l()
	return &authn.Basic{Username: username, Password: password}, nil
}
