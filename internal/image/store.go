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

// Limits bound what one image may make this machine do; see [layer.Limits].
type Limits = layer.Limits

// Options are what a Store may be told. The zero value is right for use.
type Options struct {
	// HostRoot is the directory that the host image shows; default "/".
	HostRoot string
	// Limits bound hostile images; zero fields have defaults.
	Limits Limits
	// Logger gets what is not an error; default none.
	Logger *slog.Logger
	// MaxLayers bounds the layers of an image on disk; default 8. With 1, every
	// image is one file.
	MaxLayers int
	// Transport reaches registries; default as http.DefaultTransport, with
	// proxies from the environment.
	Transport http.RoundTripper
	// Keychain finds credentials; default Docker's configuration, with
	// DOCKER_CONFIG and credential helpers.
	Keychain authn.Keychain
	// PlainHTTP lists registries ("host:port") that may be spoken to without
	// TLS. Registries on a loopback address always may.
	PlainHTTP []string
	// ECR is the address that gives logins for AWS's registries; default that of the
	// region.
	ECR string
	// StallTimeout ends a transfer that moves no byte for so long, to be
	// tried again; default 30 seconds.
	StallTimeout time.Duration
	// RetryDelay is the wait before the first retry of a failed request. It
	// doubles each time; default 200 milliseconds.
	RetryDelay time.Duration
}

// Store is a directory of images. Its methods may be called concurrently, and
// any number of processes may have the same directory open.
type Store struct {
	dir  string
	opts Options
	pins func(context.Context) ([]Pin, error) // nil: nobody needs what does not run

	restriction Restriction
	flat        atomic.Bool
}

// KeepFlat has images be one file from now on, whatever the options say, for an
// engine that cannot use layers.
func (s *Store) KeepFlat() { s.flat.Store(true) }

// maxLayers bounds the layers of an image.
func (s *Store) maxLayers() int {
	if s.flat.Load() {
		return 1
	}
	return s.opts.MaxLayers
}

// Restriction bounds what pulls for some callers may reach.
type Restriction struct {
	// Applies reports whether a pull is for somebody other than the owner of
	// the machine, who gets neither the owner's credentials nor reasons why a
	// registry cannot be reached.
	Applies func(context.Context) bool
	// Permit reports whether an address may be dialled for such a caller.
	Permit func(netip.Addr) bool
}

// Restrict is called before the store is used by others than the owner of the
// machine.
func (s *Store) Restrict(r Restriction) { s.restriction = r }

// permit returns what bounds a pull, or nil.
func (s *Store) permit(ctx context.Context) func(netip.Addr) bool {
	if s.restriction.Applies == nil || !s.restriction.Applies(ctx) {
		return nil
	}
	return s.restriction.Permit
}

// Open opens the store in dir, making it if it is missing. The directory must
// belong to the caller alone: whoever can write there decides what sandboxes
// run.
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

// Close releases what the store holds in this process; images stay usable.
func (s *Store) Close() error { return nil }

// sweepTemp removes what a crash left in tmp, unless somebody is writing.
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

// Policy says when Get asks a registry. Local sources are always looked at.
type Policy string

// The policies.
const (
	PolicyMissing Policy = "missing" // when the store does not have the image; the default
	PolicyAlways  Policy = "always"  // every time; what has not changed is not transferred again
	PolicyNever   Policy = "never"   // an image that the store does not have is CodeNotFound
)

// GetOptions are optional.
type GetOptions struct {
	Policy Policy
	// Platform is "os/arch" or "os/arch/variant"; default this machine's.
	Platform string
	// Progress, if set, is called with what goes on, by one goroutine at a
	// time, and must return soon.
	Progress func(Progress)
}

// Get returns the image that ref names, ready to use: from the store, or
// pulled or imported into it. Gets of one image at a time, in any number of
// processes, do the work once.
func (s *Store) Get(ctx context.Context, ref string, opts GetOptions) (*Image, error) {
	r, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	return s.get(ctx, r, r.name, opts)
}

// Import gets the image of source, which is usually a local one, and names it.
// The name is a registry-like one, e.g. "myapp:1"; it moves when it is taken.
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
		return nil, fail(sandbox.CodeInvalid, "image.import", name, `for example "myapp:1"`, "not a name that an image can be given")
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
	j.always = as != r.name || opts.Policy == PolicyAlways && r.kind == kindRegistry
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
		return nil, fail(sandbox.CodeNotFound, "image.get", r.name, "get it with: atoll image pull "+r.name, "the image is not in the store")
	}
	img, err := j.run(ctx)
	if err != nil {
		return nil, classify("image.get", r.name, err)
	}
	return img, nil
}

// serialized makes a progress callback safe to call from many goroutines.
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
	always   bool // whatever the store has
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

// ready returns an image whose file system exists, or fs.ErrNotExist. Its
// names are only the one it was found by: reading all would cost too much.
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

// byDigest finds an image of the store by its digest.
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

// List returns all images, those pulled last first.
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

// Inspect returns an image of the store by a name, its digest, or the
// beginning of its digest. It never asks a registry and reads no source.
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

// unique returns the bytes of the layers that no other image has.
func (s *Store) unique(x *index, rec *imageRecord) (bytes int64) {
	for _, key := range x.onlyIn(rec) {
		if fi, err := os.Stat(s.rootfsPath(key)); err == nil {
			bytes += fi.Size()
		}
	}
	return bytes
}

// find finds an image by name, digest or beginning of a digest. The name is
// empty unless it was found by one.
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
	return nil, "", fail(sandbox.CodeConflict, op, ref, "write more of the digest", "%d images begin so", len(found))
}

// classify gives an error a code, if it has none.
func classify(op, subject string, err error) error {
	var typed *sandbox.Error
	switch {
	case err == nil, errors.As(err, &typed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return internal(op, subject, err)
}
