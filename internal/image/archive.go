package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-run/atoll/sandbox"
)

// archiveSource is an archive written by docker save:
// docker-archive:FILE[:REF]. The archive is indexed once and then read at
// random, so the cost is linear in its size. The size of its config is limited.
type archiveSource struct {
	path, tag string
	store     *Store
}

func (a *archiveSource) stamp(context.Context) (string, error) { return stampPath(a.path) }

// archiveImage is an entry of manifest.json.
type archiveImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (a *archiveSource) load(ctx context.Context, j *job) (*content, error) {
	r, err := newResolver(j.ref.name, j.platform, a.store.opts.Limits, nil)
	if err != nil {
		return nil, err
	}
	f, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	idx, err := indexTar(ctx, f, r.limits)
	if err == nil {
		var c *content
		if c, err = a.content(r, idx); err == nil {
			c.close = f.Close // the layers are read from it
			return c, nil
		}
	}
	f.Close()
	return nil, err
}

// open opens the archive. A compressed one is decompressed to an unnamed file,
// because it is read at random.
func (a *archiveSource) open(ctx context.Context) (*os.File, error) {
	f, err := openSource(a.path)
	if err != nil {
		return nil, err
	}
	var magic [4]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil || !compressed(magic[:]) {
		return f, nil
	}
	defer f.Close()
	r, err := decompress(&meter{ctx: ctx, r: f})
	if err != nil {
		return nil, fail(sandbox.CodeInvalid, "image.import", a.path, "", "the compression is broken or not supported")
	}
	defer r.Close()
	tmp, err := a.store.createTemp()
	if err != nil {
		return nil, err
	}
	if err := os.Remove(tmp.Name()); err != nil {
		tmp.Close()
		return nil, err
	}
	limit := a.store.opts.Limits.Download
	n, err := io.Copy(tmp, io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		err = fail(sandbox.CodeExhausted, "image.import", a.path, "", "more than %d bytes when decompressed", limit)
	}
	if err != nil {
		tmp.Close()
		return nil, err
	}
	return tmp.File, nil
}

// tarIndex has the positions of a tar's members.
type tarIndex struct {
	f     *os.File
	files map[string]section
	links map[string]string
}

type section struct{ off, size int64 }

// indexTar finds the regular files and links of a tar.
func indexTar(ctx context.Context, f *os.File, limits Limits) (*tarIndex, error) {
	broken := func(format string, args ...any) error {
		return fail(sandbox.CodeInvalid, "image.import", f.Name(), "", "not an archive of docker save: "+format, args...)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	idx := &tarIndex{f: f, files: map[string]section{}, links: map[string]string{}}
	tr := tar.NewReader(f)
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return idx, nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return nil, broken("%v", err)
		}
		if n > limits.Entries {
			return nil, broken("more than %d members", limits.Entries)
		}
		member := clean(hdr.Name)
		switch {
		case hdr.Typeflag == tar.TypeSymlink:
			idx.links[member] = clean(path.Join(path.Dir(member), hdr.Linkname))
		case hdr.Typeflag == tar.TypeLink:
			idx.links[member] = clean(hdr.Linkname)
		case hdr.Typeflag == tar.TypeReg && !isSparse(hdr):
			// The reader has consumed the header and none of the content.
			off, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			idx.files[member] = section{off, hdr.Size}
		}
	}
}

func isSparse(hdr *tar.Header) bool {
	for k := range hdr.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// clean returns the canonical form of a member's name.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// open returns a member, following at most one link.
func (x *tarIndex) open(name string) (*io.SectionReader, bool) {
	name = clean(name)
	if target, ok := x.links[name]; ok {
		name = target
	}
	s, ok := x.files[name]
	return io.NewSectionReader(x.f, s.off, s.size), ok
}

// content selects the image and returns its content.
func (a *archiveSource) content(r *resolver, idx *tarIndex) (*content, error) {
	img, err := a.choose(r, idx)
	if err != nil {
		return nil, err
	}
	f, ok := idx.open(img.Config)
	if !ok {
		return nil, r.invalid("the archive has no config")
	}
	raw, err := readLimited(f, r.limits.Manifest)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	id := hex.EncodeToString(sum[:])
	if named := strings.TrimSuffix(path.Base(img.Config), ".json"); hexRE().MatchString(named) && named != id {
		return nil, r.invalid("the config does not match its digest")
	}
	cfg, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, r.invalid("its config is not valid JSON")
	}
	p := v1.Platform{OS: cfg.OS, Architecture: cfg.Architecture, Variant: cfg.Variant}
	if !r.fits(p) {
		return nil, fail(sandbox.CodeNotFound, "image.resolve", r.subject, "there is: "+clip(p.String()), "there is no %s of this image", r.platform.String())
	}
	m := &v1.Manifest{}
	for _, l := range img.Layers {
		f, ok := idx.open(l)
		if !ok {
			return nil, r.invalid("the archive has no layer %q", clip(l))
		}
		m.Layers = append(m.Layers, v1.Descriptor{Digest: v1.Hash{Algorithm: "sha256"}, Size: f.Size()})
	}
	if err := r.checkLayers(m, cfg); err != nil {
		return nil, err
	}
	c, err := r.content(&resolved{digest: "sha256:" + id, manifest: m, config: cfg, platform: r.platform.String()})
	if err != nil {
		return nil, err
	}
	for i := range c.layers {
		f, _ := idx.open(img.Layers[i])
		c.layers[i].digest = "" // an archive identifies layers only by their diffID
		c.layers[i].open = func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(f, 0, f.Size())), nil
		}
	}
	return c, nil
}

// choose returns the image with the tag, or the only one.
func (a *archiveSource) choose(r *resolver, idx *tarIndex) (*archiveImage, error) {
	f, ok := idx.open("manifest.json")
	if !ok {
		return nil, fail(sandbox.CodeInvalid, "image.import", a.path, "for a tar of a root file system write tar:"+a.path, "not an archive of docker save: it has no manifest.json")
	}
	raw, err := readLimited(f, r.limits.Manifest)
	if err != nil {
		return nil, err
	}
	var images []archiveImage
	if err := json.Unmarshal(raw, &images); err != nil {
		return nil, r.invalid("manifest.json is not valid")
	}
	var tags []string
	for i := range images {
		for _, t := range images[i].RepoTags {
			if a.tag != "" && sameName(t, a.tag) {
				return &images[i], nil
			}
			tags = append(tags, clip(t))
		}
	}
	slices.Sort(tags)
	hint := "there are: " + strings.Join(tags, ", ")
	switch {
	case a.tag != "" || len(images) == 0:
		return nil, fail(sandbox.CodeNotFound, "image.resolve", r.subject, hint, "the archive has no such image")
	case len(images) > 1:
		return nil, fail(sandbox.CodeInvalid, "image.resolve", r.subject, hint, "the archive has several images: write docker-archive:FILE:REF")
	}
	return &images[0], nil
}

// sameName reports whether two names refer to the same image.
func sameName(a, b string) bool {
	ra, err1 := name.ParseReference(a)
	rb, err2 := name.ParseReference(b)
	return err1 == nil && err2 == nil && ra.Name() == rb.Name()
}
