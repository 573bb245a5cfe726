package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
)

// layoutSource is an OCI image layout: oci:DIR[:TAG]. It does not use the
// registry library, which would open FIFOs, follow links out of the directory,
// and read configs of any size into memory.
type layoutSource struct {
	path, tag string
	limits    Limits
}

// annotationName is the annotation with the name of an image in a layout.
const annotationName = "org.opencontainers.image.ref.name"

func (l *layoutSource) stamp(context.Context) (string, error) {
	data, err := l.file("index.json")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// open opens a regular file of the layout.
func (l *layoutSource) open(name string) (*os.File, error) {
	root, err := openDir(l.path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fi, err := root.Lstat(name)
	if err == nil && !fi.Mode().IsRegular() {
		err = fail(sandbox.CodeInvalid, "image.import", l.path+"/"+name, "", "not a regular file")
	}
	if err != nil {
		return nil, missingSource(l.path+"/"+name, err)
	}
	f, _, err := openRegular(root, name)
	if err != nil {
		return nil, missingSource(l.path+"/"+name, err)
	}
	return f, nil
}

// file reads a small file of the layout.
func (l *layoutSource) file(name string) ([]byte, error) {
	f, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readLimited(f, l.limits.Manifest)
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

func (l *layoutSource) load(ctx context.Context, j *job) (*content, error) {
	data, err := l.file("index.json")
	if err != nil {
		return nil, err
	}
	r, err := newResolver(j.ref.name, j.platform, l.limits, func(_ context.Context, d v1.Descriptor) ([]byte, error) {
		return l.file(blobName(d.Digest))
	})
	if err != nil {
		return nil, err
	}
	idx, err := v1.ParseIndexManifest(bytes.NewReader(data))
	if err != nil {
		return nil, r.invalid("index.json is not valid JSON")
	}
	d, data, err := l.entry(ctx, r, idx, data)
	if err != nil {
		return nil, err
	}
	res, err := r.resolve(ctx, d, data)
	if err != nil {
		return nil, err
	}
	c, err := r.content(res)
	if err != nil {
		return nil, err
	}
	c.signatures = l.signatures(ctx, r, idx, res)
	for i := range c.layers {
		name := blobName(res.manifest.Layers[i].Digest)
		c.layers[i].open = func(context.Context) (io.ReadCloser, error) { return l.open(name) }
	}
	return c, nil
}

// entry returns the image with the tag, or the only one. Several images without
// a tag count as one multi-platform image, if they have platforms.
func (l *layoutSource) entry(ctx context.Context, r *resolver, idx *v1.IndexManifest, data []byte) (v1.Descriptor, []byte, error) {
	var named []v1.Descriptor
	var tags []string
	platforms := true
	for _, d := range idx.Manifests {
		if isAttachment(d) {
			continue
		}
		name := d.Annotations[annotationName]
		if l.tag == "" || name == l.tag || strings.HasSuffix(name, ":"+l.tag) {
			named = append(named, d)
		}
		if name != "" {
			tags = append(tags, clip(name))
		}
		platforms = platforms && d.Platform != nil
	}
	slices.Sort(tags)
	hint := "there are: " + strings.Join(slices.Compact(tags), ", ")
	switch {
	case len(named) == 0:
		return v1.Descriptor{}, nil, fail(sandbox.CodeNotFound, "image.resolve", r.subject, hint, "the layout has no such image")
	case len(named) == 1:
		data, err := r.fetch(ctx, named[0])
		return named[0], data, err
	case l.tag == "" && platforms:
		return v1.Descriptor{MediaType: types.OCIImageIndex}, data, nil
	}
	return v1.Descriptor{}, nil, fail(sandbox.CodeInvalid, "image.resolve", r.subject, hint, "the layout has several images: write oci:DIR:TAG")
}
