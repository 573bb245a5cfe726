package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// Limits on the indexes of one image.
const (
	maxNesting = 4  // indexes within indexes
	maxIndexes = 16 // indexes read for one image
)

// resolver selects the manifest of one image from a tree of indexes.
type resolver struct {
	subject  string
	platform v1.Platform
	limits   Limits
	// read returns the unverified content of a descriptor, of limited size.
	read func(ctx context.Context, d v1.Descriptor) ([]byte, error)

	indexes int
	have    []string // platforms found so far
}

// resolved is the manifest of an image with its config.
type resolved struct {
	digest   string
	manifest *v1.Manifest
	config   *v1.ConfigFile
	platform string
	via      []string // digests of the indexes that refer to it, nearest first
}

func newResolver(subject, platform string, limits Limits, read func(context.Context, v1.Descriptor) ([]byte, error)) (*resolver, error) {
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		return nil, err
	}
	return &resolver{subject: subject, platform: *p, limits: limits, read: read}, nil
}

func (r *resolver) invalid(format string, args ...any) error {
	return fail(sandbox.CodeInvalid, "image.resolve", r.subject, "", format, args...)
}

// fetch returns the verified content of a descriptor.
func (r *resolver) fetch(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, r.invalid("digests of kind %q are not supported", d.Digest.Algorithm)
	}
	if d.Size < 0 || d.Size > r.limits.Manifest {
		return nil, fail(sandbox.CodeExhausted, "image.resolve", r.subject, "", "a manifest or config of %d bytes, at most %d", d.Size, r.limits.Manifest)
	}
	data, err := r.read(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := r.verify(data, d); err != nil {
		return nil, err
	}
	return data, nil
}

func (r *resolver) verify(data []byte, d v1.Descriptor) error {
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != d.Digest.Hex {
		return r.invalid("the content of %s does not match its digest", d.Digest)
	}
	return nil
}

// readLimited reads all of r, at most limit bytes.
func readLimited(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fail(sandbox.CodeExhausted, "image.resolve", "", "", "a manifest or config of more than %d bytes", limit)
	}
	return data, err
}

// resolve finds the manifest for the platform, starting from a descriptor with
// its content.
func (r *resolver) resolve(ctx context.Context, d v1.Descriptor, data []byte) (*resolved, error) {
	res, err := r.choose(ctx, d, data, 0)
	if err != nil {
		return nil, err
	}
	if res == nil {
		slices.Sort(r.have)
		return nil, fail(sandbox.CodeNotFound, "image.resolve", r.subject, "there are: "+strings.Join(slices.Compact(r.have), ", "),
			"there is no %s of this image", r.platform.String())
	}
	return res, nil
}

// choose returns nil if there is no manifest for the platform.
func (r *resolver) choose(ctx context.Context, d v1.Descriptor, data []byte, depth int) (*resolved, error) {
	switch mt := mediaType(d, data); {
	case mt.IsIndex():
		res, err := r.chooseFromIndex(ctx, data, depth)
		if res != nil && d.Digest.Hex != "" { // a layout's own index has no digest
			res.via = append(res.via, d.Digest.String())
		}
		return res, err
	case mt.IsImage():
		return r.image(ctx, d, data)
	default:
		return nil, r.invalid("a manifest of type %q is not supported", clip(string(mt)))
	}
}

// mediaType prefers the media type in the content to the one in the descriptor.
func mediaType(d v1.Descriptor, data []byte) types.MediaType {
	if m, err := v1.ParseManifest(bytes.NewReader(data)); err == nil && m.MediaType != "" {
		return m.MediaType
	}
	return d.MediaType
}

func (r *resolver) chooseFromIndex(ctx context.Context, data []byte, depth int) (*resolved, error) {
	if r.indexes++; depth >= maxNesting || r.indexes > maxIndexes {
		return nil, r.invalid("its index leads to too many other indexes")
	}
	idx, err := v1.ParseIndexManifest(bytes.NewReader(data))
	if err != nil {
		return nil, r.invalid("its index is not valid JSON")
	}
	for _, d := range r.candidates(idx.Manifests) {
		data, err := r.fetch(ctx, d)
		if err != nil {
			return nil, err
		}
		if res, err := r.choose(ctx, d, data, depth+1); res != nil || err != nil {
			return res, err
		}
	}
	return nil, nil
}

// candidates returns the entries that may match, best first: entries for the
// platform, then entries without a platform.
func (r *resolver) candidates(all []v1.Descriptor) []v1.Descriptor {
	var exact, fits, silent []v1.Descriptor
	for _, d := range all {
		switch p := d.Platform; {
		case !d.MediaType.IsImage() && !d.MediaType.IsIndex(), isAttachment(d):
		case p == nil:
			silent = append(silent, d)
		case p.OS == "unknown": // an attestation, not an image
		case p.OS == r.platform.OS && p.Architecture == r.platform.Architecture && p.Variant == r.platform.Variant:
			exact = append(exact, d)
		case p.OS == r.platform.OS && p.Architecture == r.platform.Architecture && r.platform.Variant == "":
			fits = append(fits, d)
		default:
			r.have = append(r.have, clip(p.String()))
		}
	}
	return slices.Concat(exact, fits, silent)
}

// image reads a manifest and its config. It returns nil if they are for another
// platform.
func (r *resolver) image(ctx context.Context, d v1.Descriptor, data []byte) (*resolved, error) {
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil || m.SchemaVersion != 2 {
		return nil, r.invalid("its manifest is not valid")
	}
	if !m.Config.MediaType.IsConfig() {
		return nil, r.invalid("it is not a container image but an artifact of type %q", clip(string(m.Config.MediaType)))
	}
	raw, err := r.fetch(ctx, m.Config)
	if err != nil {
		return nil, err
	}
	cfg, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, r.invalid("its config is not valid JSON")
	}
	p := v1.Platform{OS: cfg.OS, Architecture: cfg.Architecture, Variant: cfg.Variant}
	if !r.fits(p) {
		r.have = append(r.have, clip(p.String()))
		return nil, nil
	}
	if err := r.checkLayers(m, cfg); err != nil {
		return nil, err
	}
	return &resolved{digest: d.Digest.String(), manifest: m, config: cfg, platform: r.platform.String()}, nil
}

// fits reports whether a config is for the platform. A missing field matches.
func (r *resolver) fits(p v1.Platform) bool {
	return (p.OS == "" || p.OS == r.platform.OS) && (p.Architecture == "" || p.Architecture == r.platform.Architecture) &&
		(p.Variant == "" || r.platform.Variant == "" || p.Variant == r.platform.Variant)
}

// checkLayers refuses layers that cannot be downloaded or verified.
func (r *resolver) checkLayers(m *v1.Manifest, cfg *v1.ConfigFile) error {
	if n := len(m.Layers); n > r.limits.Layers {
		return fail(sandbox.CodeExhausted, "image.resolve", r.subject, "", "%d layers, at most %d", n, r.limits.Layers)
	}
	if len(m.Layers) != len(cfg.RootFS.DiffIDs) {
		return r.invalid("its manifest has %d layers and its config %d", len(m.Layers), len(cfg.RootFS.DiffIDs))
	}
	var total int64
	for i, l := range m.Layers {
		switch {
		case l.MediaType.IsLayer() && !l.MediaType.IsDistributable():
			return r.invalid("layer %d is foreign: it may not be distributed and cannot be verified", i+1)
		case l.Digest.Algorithm != "sha256" || cfg.RootFS.DiffIDs[i].Algorithm != "sha256":
			return r.invalid("layer %d has a digest of a kind that is not supported", i+1)
		case l.Size < 0 || l.Size > r.limits.Download-total:
			return fail(sandbox.CodeExhausted, "image.resolve", r.subject, "", "its layers have more than %d bytes", r.limits.Download)
		}
		total += l.Size
	}
	return nil
}

// content returns the content of an image; its layers are opened later.
func (r *resolver) content(res *resolved) (*content, error) {
	cfg, err := r.runConfig(res.config)
	if err != nil {
		return nil, err
	}
	c := &content{digest: res.digest, platform: res.platform, created: res.config.Created.Time, config: cfg}
	for i, l := range res.manifest.Layers {
		c.layers = append(c.layers, layerBlob{digest: l.Digest.String(), diffID: res.config.RootFS.DiffIDs[i].String(), size: l.Size})
	}
	return c, nil
}

var stopSignalRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(SIG)?[A-Z0-9+-]{1,16}$`) })

// runConfig converts the configuration. Unsupported settings are refused if
// they would change what runs, and ignored otherwise.
func (r *resolver) runConfig(cfg *v1.ConfigFile) (Config, error) {
	in := cfg.Config
	out := Config{Entrypoint: in.Entrypoint, Cmd: in.Cmd, User: in.User, Labels: in.Labels}
	for _, s := range slices.Concat(in.Entrypoint, in.Cmd, in.Env, []string{in.User, in.WorkingDir}) {
		if strings.IndexByte(s, 0) >= 0 {
			return Config{}, r.invalid("its config holds a NUL byte")
		}
	}
	if len(in.User) > 128 || strings.ContainsAny(in.User, "\n/ ") || len(in.WorkingDir) > 4096 || len(in.Env) > bounds.MaxEnv {
		return Config{}, r.invalid("its config has an unusable user, working directory or environment")
	}
	for _, e := range in.Env {
		if name, _, ok := strings.Cut(e, "="); ok && name != "" {
			out.Env = append(out.Env, e)
		}
	}
	if in.WorkingDir != "" {
		out.Workdir = path.Clean("/" + in.WorkingDir)
	}
	if stopSignalRE().MatchString(in.StopSignal) {
		out.StopSignal = in.StopSignal
	}
	for p := range in.ExposedPorts {
		out.ExposedPorts = append(out.ExposedPorts, clip(p))
	}
	for v := range in.Volumes {
		if strings.HasPrefix(v, "/") && strings.IndexByte(v, 0) < 0 {
			out.Volumes = append(out.Volumes, path.Clean(v))
		}
	}
	slices.Sort(out.ExposedPorts)
	slices.Sort(out.Volumes)
	return out, nil
}

// clip shortens untrusted text in messages.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
