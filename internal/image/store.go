package image

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/layer"
	"github.com/atoll-run/atoll/sandbox"
)

// Limits are the limits of one image; see [layer.Limits].
type Limits = layer.Limits

// Options configures a Store. The zero value is usable.
type Options struct {
	// HostRoot is the root directory of the host image; default "/".
	HostRoot string
	// Limits limit untrusted images; zero fields have defaults.
	Limits Limits
	// Logger gets messages that are not errors; default none.
	Logger *slog.Logger
	// MaxLayers is the maximum number of layers of an image on disk; default 8.
	// With 1, every image is a single file.
	MaxLayers int
	// Transport is used for registries; by default like http.DefaultTransport,
	// with proxies from the environment.
	Transport http.RoundTripper
	// Keychain provides credentials; by default Docker's configuration, including
	// DOCKER_CONFIG and credential helpers.
	Keychain authn.Keychain
	// PlainHTTP lists registries ("host:port") that are used without TLS.
	// Registries on a loopback address are always allowed without TLS.
	PlainHTTP []string
	// ECR is the address of the AWS service that issues registry logins; by
	// default that of the region.
	ECR string
	// StallTimeout cancels and retries a transfer that moves no bytes for this
	// long; default 30 seconds.
	StallTimeout time.Duration
	// RetryDelay is the delay before the first retry of a failed request. It
	// doubles each time; default 200 milliseconds.
	RetryDelay time.Duration
}

// Store is a directory of images. It is safe for concurrent use, also by
// several processes.
type Store struct {
	dir  string
	opts Options
	pins func(context.Context) ([]Pin, error) // nil: no pins

	restriction Restriction
	shared      *shared // nil: nothing is shared
	flat        atomic.Bool

	lent sync.Map // digests of images to digests for other stores; see Lend
	sums sync.Map // keys of layers to lentLayer
}

// KeepFlat makes new images single files, regardless of the options, for an
// engine without support for layers.
func (s *Store) KeepFlat() { s.flat.Store(true) }

// maxLayers returns the maximum number of layers of an image.
func (s *Store) maxLayers() int {
	if s.flat.Load() {
		return 1
	}
	return s.opts.MaxLayers
}

// Restriction restricts the pulls of some callers.
type Restriction struct {
	// Applies reports whether a pull is for a caller other than the owner of the
	// machine. Such a caller gets neither the owner's credentials nor the reason
	// why a registry cannot be reached.
	Applies func(context.Context) bool
	// Permit reports whether an address may be dialled for such a caller.
	Permit func(netip.Addr) bool
}

// Restrict sets the restriction. Call it before callers other than the owner of
// the machine use the store.
func (s *Store) Restrict(r Restriction) { s.restriction = r }

// permit returns the address check of a pull, or nil.
func (s *Store) permit(ctx context.Context) func(netip.Addr) bool {
	if s.restriction.Applies == nil || !s.restriction.Applies(ctx) {
		return nil
	}
	return s.restriction.Permit
}

// Open opens the store in dir, which is created if missing. Only the caller may
// be able to write to the directory, because its contents determine what
// sandboxes run.
func Open(dir string, opts Options) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, internal("image.store", dir, err)
	}
	if opts.HostRoot == "" {
		opts.HostRoot = "/"
	}
	opts.Limits = opts.Limits.WithDefaults()
	if opts.MaxLayers <= 0 {
		opts.MaxLayers = 8
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Keychain == nil {
		opts.Keychain = authn.DefaultKeychain
	}
	if opts.StallTimeout <= 0 {
		opts.StallTimeout = 30 * time.Second
	}
	if opts.RetryDelay <= 0 {
		opts.RetryDelay = 200 * time.Millisecond
	}
	s := &Store{dir: abs, opts: opts}
	for _, d := range []string{"", "blobs", "blobs/sha256", "partial", "rootfs", "images", "refs", "tmp", "locks"} {
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			return nil, internal("image.store", abs, err)
		}
	}
	return s, s.sweepTemp()
}

// Close releases the store's resources in this process. Images stay usable.
func (s *Store) Close() error {
	s.shared.close()
	return nil
}

// sweepTemp removes files that a crash left in tmp, unless files are being
// written.
func (s *Store) sweepTemp() error {
	l, err := s.tryLock(lockGC, unix.LOCK_EX)
	if errors.Is(err, errLocked) {
		return nil
	}
	if err != nil {
		return internal("image.store", s.dir, err)
	}
	defer l.Close()
	if err := s.sweepDir("tmp", &sweeper{}, func(string) bool { return true }); err != nil {
		return internal("image.store", s.dir, err)
	}
	return nil
}

// Policy is when Get contacts a registry. Local sources are always checked.
type Policy string

// The policies.
const (
	PolicyMissing Policy = "missing" // if the store does not have the image; the default
	PolicyAlways  Policy = "always"  // every time; an unchanged image is not downloaded again
	PolicyNever   Policy = "never"   // never; an image that is not in the store is CodeNotFound
)

// GetOptions are the options of Get. All are optional.
type GetOptions struct {
	Policy Policy
	// Platform is "os/arch" or "os/arch/variant"; default: this machine's.
	Platform string
	// Progress, if set, is called with progress, by one goroutine at a time. It
	// must not block.
	Progress func(Progress)
}

// Get returns the image that ref names, from the store, or pulled or imported
// into it. Concurrent Gets of the same image, also in several processes, do the
// work once.
func (s *Store) Get(ctx context.Context, ref string, opts GetOptions) (*Image, error) {
	r, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	return s.get(ctx, r, r.name, opts)
}

// Import gets the image of source, which is usually local, and names it. The
// name has the form of a registry reference, such as "myapp:1"; if it is in
// use, it is moved.
func (s *Store) Import(ctx context.Context, source, name string, opts GetOptions) (*Image, error) {
	src, err := parseReference(source)
	if err != nil {
		return nil, err
	}
	as, err := parseReference(name)
	if err != nil {
		return nil, err
	}
	if as.kind != kindRegistry || strings.Contains(as.name, "@") {
		return nil, fail(sandbox.CodeInvalid, "image.import", name, `for example "myapp:1"`, "not a valid image name")
	}
	return s.get(ctx, src, as.name, opts)
}

// get gets the image of r and records it under the name as.
func (s *Store) get(ctx context.Context, r *reference, as string, opts GetOptions) (*Image, error) {
	if r.kind == kindDigest {
		return s.byDigest(r.name)
	}
	platform, err := parsePlatform(opts.Platform)
	if err != nil {
		return nil, err
	}
	j := &job{s: s, ref: r, as: as, platform: platform, progress: serialized(opts.Progress)}
	switch opts.Policy {
	case "", PolicyMissing, PolicyNever, PolicyAlways:
	default:
		return nil, fail(sandbox.CodeInvalid, "image.get", r.name, "use missing, always or never", "%q is not a pull policy", opts.Policy)
	}
	j.imported = as != r.name
	j.always = j.imported || opts.Policy == PolicyAlways && r.kind == kindRegistry
	if j.src, err = s.source(r); err != nil {
		return nil, err
	}
	if !j.always {
		img, err := j.cached(ctx)
		if img != nil || err != nil {
			return img, err
		}
	}
	if opts.Policy == PolicyNever && r.kind == kindRegistry {
		return nil, fail(sandbox.CodeNotFound, "image.get", r.name, "pull it with: atoll image pull "+r.name, "the image is not in the store")
	}
	img, err := j.run(ctx)
	if err != nil {
		return nil, classify("image.get", r.name, err)
	}
	return img, nil
}

// serialized makes a progress callback safe for concurrent use.
func serialized(f func(Progress)) func(Progress) {
	if f == nil {
		return func(Progress) {}
	}
	var mu sync.Mutex
	return func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		f(p)
	}
}

// parsePlatform returns the canonical form of a platform.
func parsePlatform(p string) (string, error) {
	if p == "" {
		return "linux/" + runtime.GOARCH, nil
	}
	parsed, err := v1.ParsePlatform(p)
	if err != nil || parsed.OS == "" || parsed.Architecture == "" || strings.Contains(p, ":") || len(p) > 100 {
		return "", fail(sandbox.CodeInvalid, "image.platform", "", "for example linux/amd64 or linux/arm64", "%q is not a platform", p)
	}
	return parsed.String(), nil
}

// job is one Get.
type job struct {
	s        *Store
	ref      *reference
	as       string
	platform string
	always   bool // even if the store has the image
	imported bool // as is a name that a user gives
	src      source
	progress func(Progress)
}

// cached returns the image if the store has it and its source has not changed.
func (j *job) cached(ctx context.Context) (*Image, error) {
	rec, err := j.s.readRef(j.as, j.platform)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, internal("image.get", j.as, err)
	}
	stamp, err := j.src.stamp(ctx)
	if err != nil {
		return nil, classify("image.get", j.as, err)
	}
	if stamp != rec.Stamp {
		return nil, nil
	}
	img, err := j.s.ready(rec.Digest, j.as)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, internal("image.get", j.as, err)
	}
	return img, nil
}

// ready returns an image whose file system exists, or fs.ErrNotExist. Its Names
// contain only ref, because finding all would take too long.
func (s *Store) ready(digest, ref string) (*Image, error) {
	rec, err := s.readImage(digest)
	if err != nil {
		return nil, err
	}
	if err := s.haveLayers(rec.layers()); err != nil {
		return nil, err
	}
	return s.image(rec, ref, []string{ref}), nil
}

// haveLayers returns fs.ErrNotExist if a layer is missing.
func (s *Store) haveLayers(keys []string) error {
	for _, key := range keys {
		if _, err := os.Stat(s.rootfsPath(key)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) image(rec *imageRecord, ref string, names []string) *Image {
	return &Image{
		Ref: ref, Digest: rec.Digest, Names: names, Platform: rec.Platform,
		Created: rec.Created, Pulled: rec.Pulled, Size: rec.Size,
		Config: rec.Config, Binds: rec.Binds, Signatures: rec.Signatures, Layers: rec.layers(), dir: s.path("rootfs"),
	}
}

// byDigest returns an image of the store by its digest.
func (s *Store) byDigest(digest string) (*Image, error) {
	img, err := s.ready(digest, digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(sandbox.CodeNotFound, "image.get", digest, "list the images with: atoll image ls", "no such image in the store")
	}
	if err != nil {
		return nil, internal("image.get", digest, err)
	}
	img.Names = nil
	return img, nil
}

// List returns all images, most recently pulled first.
func (s *Store) List(ctx context.Context) ([]*Image, error) {
	x, err := s.readIndex()
	if err != nil {
		return nil, internal("image.list", s.dir, err)
	}
	var images []*Image
	for _, rec := range x.images {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		names := x.names(rec.Digest)
		ref := rec.Digest
		if len(names) > 0 {
			ref = names[0]
		}
		img := s.image(rec, ref, names)
		img.Unique = s.unique(x, rec)
		images = append(images, img)
	}
	slices.SortFunc(images, func(a, b *Image) int {
		if c := b.Pulled.Compare(a.Pulled); c != 0 {
			return c
		}
		return strings.Compare(a.Digest, b.Digest)
	})
	return images, nil
}

// Inspect returns an image of the store by name, digest, or prefix of its
// digest. It does not contact registries or read sources.
func (s *Store) Inspect(ctx context.Context, ref string) (*Image, error) {
	x, err := s.readIndex()
	if err != nil {
		return nil, internal("image.inspect", ref, err)
	}
	rec, name, err := x.find("image.inspect", ref)
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = rec.Digest
	}
	img := s.image(rec, name, x.names(rec.Digest))
	img.Unique = s.unique(x, rec)
	return img, ctx.Err()
}

// unique returns the bytes of layers that no other image has.
func (s *Store) unique(x *index, rec *imageRecord) (bytes int64) {
	for _, key := range x.onlyIn(rec) {
		if fi, err := os.Stat(s.rootfsPath(key)); err == nil {
			bytes += fi.Size()
		}
	}
	return bytes
}

// find returns an image by name, digest or prefix of a digest. The returned
// name is empty unless it was found by name.
func (x *index) find(op, ref string) (*imageRecord, string, error) {
	var digest, name string
	if r, err := parseReference(ref); err == nil {
		own := "linux/" + runtime.GOARCH
		for _, rec := range x.refs {
			if rec.Name == r.name && (digest == "" || rec.Platform == own) {
				digest, name = rec.Digest, rec.Name
			}
		}
	}
	var found []*imageRecord
	short := strings.TrimPrefix(ref, "sha256:")
	for _, rec := range x.images {
		switch {
		case rec.Digest == digest:
			return rec, name, nil
		case digest == "" && len(short) >= 6 && strings.HasPrefix(rec.Digest, "sha256:"+short):
			found = append(found, rec)
		}
	}
	switch len(found) {
	case 0:
		return nil, "", fail(sandbox.CodeNotFound, op, ref, "list the images with: atoll image ls", "no such image in the store")
	case 1:
		return found[0], "", nil
	}
	return nil, "", fail(sandbox.CodeConflict, op, ref, "give more of the digest", "%d images have digests with this prefix", len(found))
}

// classify adds a code to an error that has none.
func classify(op, subject string, err error) error {
	var typed *sandbox.Error
	switch {
	case err == nil, errors.As(err, &typed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return internal(op, subject, err)
}
