package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/layer"
	"github.com/atoll-run/atoll/internal/image/mkfs"
	"github.com/atoll-run/atoll/sandbox"
)

// source is the source of an image.
type source interface {
	// stamp returns a value that changes when a local source changes, without
	// reading it completely. It is "" for registries.
	stamp(ctx context.Context) (string, error)
	// load returns the content of the image. The caller holds the gc lock.
	load(ctx context.Context, j *job) (*content, error)
}

// content describes the parts of an image.
type content struct {
	digest   string // of the manifest; "": use the digest of the layers
	platform string
	created  time.Time
	config   Config
	layers   []layerBlob
	binds    []Bind
	literal  bool     // the layer is a complete root file system, without whiteouts
	blobs    []string // blobs to keep in the store for it

	signatures []Signature // found with the image, not verified

	prepare func(ctx context.Context) error // downloads the layers before they are opened; may be nil
	close   func() error                    // closes what the layers are read from; may be nil
}

// layerBlob is one layer.
type layerBlob struct {
	digest string // of the bytes that open returns; "" if unknown
	stored bool   // the bytes were verified when they were stored
	diffID string // of the uncompressed tar; "" if unknown
	size   int64  // of the bytes that open returns; 0 if unknown
	open   func(ctx context.Context) (io.ReadCloser, error)
	// spoiled is called if the bytes do not match the digest; may be nil.
	spoiled func()
}

// source returns the source of a reference.
func (s *Store) source(r *reference) (source, error) {
	switch r.kind {
	case kindHost:
		return &hostSource{root: s.opts.HostRoot}, nil
	case kindDir:
		return &dirSource{path: r.path}, nil
	case kindTar:
		return &tarSource{path: r.path}, nil
	case kindLayout:
		return &layoutSource{path: r.path, tag: r.tag, limits: s.opts.Limits}, nil
	case kindArchive:
		return &archiveSource{path: r.path, tag: r.tag, store: s}, nil
	case kindRegistry:
		return &registrySource{store: s, ref: r}, nil
	}
	return nil, fail(sandbox.CodeInvalid, "image.get", r.name, "", "not a source of images")
}

// run gets the image: it locks, loads, builds and records it.
func (j *job) run(ctx context.Context) (*Image, error) {
	s := j.s
	waiting := func() { j.progress(Progress{Phase: PhaseWaiting}) }
	gc, err := s.lock(ctx, lockGC, unix.LOCK_SH, waiting)
	if err != nil {
		return nil, err
	}
	defer gc.Close()
	own, err := s.lock(ctx, "ref-"+refFile(j.as, j.platform), unix.LOCK_EX, waiting)
	if err != nil {
		return nil, err
	}
	defer own.Close()
	if !j.always {
		if img, err := j.cached(ctx); img != nil || err != nil {
			return img, err
		}
	}
	stamp, err := j.src.stamp(ctx) // before reading, so that a concurrent change is noticed next time
	if err != nil {
		return nil, err
	}
	j.progress(Progress{Phase: PhaseResolving})
	c, err := j.src.load(ctx, j)
	if err != nil {
		return nil, err
	}
	if c.close != nil {
		defer func() { _ = c.close() }() // errors after reading do not matter
	}
	if j.as != j.ref.name {
		stamp = "" // an imported image does not change
	}
	img, err := j.finish(ctx, c, stamp)
	if err == nil {
		j.progress(Progress{Phase: PhaseReady})
	}
	return img, err
}

// finish builds the file system unless the store has it, and records the image.
// If the file system is removed meanwhile, it is built again.
func (j *job) finish(ctx context.Context, c *content, stamp string) (*Image, error) {
	for {
		rootfs, err := j.s.ensureRootfs(ctx, c, j.progress)
		if err != nil {
			return nil, err
		}
		digest := c.digest
		if digest == "" {
			digest = "sha256:" + rootfs.layers[0]
		}
		img, err := j.record(ctx, c, digest, rootfs, stamp)
		if !errors.Is(err, errRemoved) {
			return img, err
		}
	}
}

// errRemoved means that a file system was removed before it was recorded.
var errRemoved = errors.New("the root file system was removed meanwhile")

// record records the image and its name.
func (j *job) record(ctx context.Context, c *content, digest string, built rootfs, stamp string) (*Image, error) {
	s := j.s
	l, err := s.lock(ctx, lockIndex, unix.LOCK_EX, nil)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := s.haveLayers(built.layers); err != nil {
		return nil, errRemoved
	}
	rec := &imageRecord{
		Version: recordVersion, Digest: digest, Platform: c.platform, Created: c.created, Pulled: time.Now().UTC(),
		Size: built.size, Rootfs: built.layers[0], Lower: built.layers[1:], Config: c.config, Binds: c.binds, Blobs: c.blobs,
	}
	if len(rec.Lower) > 0 {
		rec.Version = layeredVersion
	}
	if rec.Platform == "" {
		rec.Platform = j.platform
	}
	if known, err := s.readImage(digest); err == nil {
		rec.Signatures = keptWith(c.signatures, known.Signatures)
	} else {
		rec.Signatures = c.signatures
	}
	h, _ := digestHex(digest)
	if err := s.writeRecord(rec, "images", h+".json"); err != nil {
		return nil, err
	}
	old, _ := s.readRef(j.as, j.platform)
	ref := &refRecord{Version: recordVersion, Name: j.as, Platform: j.platform, Digest: digest, Stamp: stamp}
	if j.imported {
		before, err := s.readAnyRef(j.as, j.platform)
		if err != nil {
			return nil, err
		}
		if before == nil {
			before = &refRecord{}
		}
		ref.changes = before.changed()
	}
	if err := s.writeRecord(ref, "refs", refFile(j.as, j.platform)); err != nil {
		return nil, err
	}
	if old != nil && old.Digest != digest && j.ref.kind != kindRegistry {
		s.dropUnnamed(old.Digest)
	}
	return s.image(rec, j.as, []string{j.as}), nil
}

// rootfs is a built file system.
type rootfs struct {
	layers []string // names as of rootfsKey or layerKey, top first
	size   int64    // of all layers
}

// rootfsKey returns the name of a file system: a hash of the format version and
// the digests of its layers.
func rootfsKey(diffIDs []string, literal bool) string {
	h := sha256.New()
	fmt.Fprintf(h, "atoll rootfs %d literal=%t\n", recordVersion, literal)
	for _, id := range diffIDs {
		fmt.Fprintln(h, id)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// ensureRootfs builds the file system of c unless the store has it.
func (s *Store) ensureRootfs(ctx context.Context, c *content, progress func(Progress)) (rootfs, error) {
	var ids []string
	for _, l := range c.layers {
		if l.diffID == "" { // known only after building
			return s.buildRootfs(ctx, c, progress)
		}
		ids = append(ids, l.diffID)
	}
	key := rootfsKey(ids, c.literal)
	l, err := s.lock(ctx, "rootfs-"+key, unix.LOCK_EX, func() { progress(Progress{Phase: PhaseWaiting}) })
	if err != nil {
		return rootfs{}, err
	}
	defer l.Close()
	if fi, err := os.Stat(s.rootfsPath(key)); err == nil {
		return rootfs{[]string{key}, fi.Size()}, nil
	}
	if c.prepare != nil {
		if err := c.prepare(ctx); err != nil {
			return rootfs{}, err
		}
	}
	return s.buildRootfs(ctx, c, progress)
}

// buildRootfs builds the file system of c.
func (s *Store) buildRootfs(ctx context.Context, c *content, progress func(Progress)) (rootfs, error) {
	tmp, ids, size, err := s.writeLayer(ctx, c, nil, progress)
	if err != nil {
		return rootfs{}, err
	}
	defer tmp.discard()
	key := rootfsKey(ids, c.literal)
	return rootfs{[]string{key}, size}, s.keepLayer(tmp, key)
}

// keepLayer renames a layer to its key, unless it exists.
func (s *Store) keepLayer(tmp *tempFile, key string) error {
	if _, err := os.Stat(s.rootfsPath(key)); err == nil {
		return nil
	}
	return tmp.publish(s.rootfsPath(key))
}

// writeLayer streams tars into an EROFS file: all files, or only the difference
// to lower layers. The caller publishes or discards it. It also returns the
// digests of the tars.
func (s *Store) writeLayer(ctx context.Context, c *content, over *lower, progress func(Progress)) (_ *tempFile, ids []string, size int64, err error) {
	tmp, err := s.createTemp()
	if err != nil {
		return nil, nil, 0, err
	}
	defer func() {
		if err != nil {
			tmp.discard()
		}
	}()
	out := mkfs.NewWriter(tmp.File)
	tree := layer.New(out, s.opts.Limits)
	if over != nil {
		tree.Over(over.all.Root)
	}
	for i, blob := range c.layers {
		p := Progress{Phase: PhaseBuilding, Layer: i + 1, Layers: len(c.layers), Digest: blob.digest, Total: blob.size}
		id, err := s.applyLayer(ctx, tree, blob, c.literal, p, progress)
		if err != nil {
			if sandbox.CodeOf(err) == sandbox.CodeInvalid && blob.spoiled != nil {
				blob.spoiled()
			}
			return nil, nil, 0, err
		}
		ids = append(ids, id)
	}
	if err := allVisible(tree.Root(), c.binds); err != nil {
		return nil, nil, 0, err
	}
	root := tree.Root()
	if over != nil {
		if root, err = over.delta(ctx, root, out); err != nil {
			return nil, nil, 0, err
		}
	}
	size, err = out.Finish(root)
	return tmp, ids, size, err
}

// allVisible refuses an image with files in a directory that a bind mount of
// this machine would hide.
func allVisible(root *mkfs.Node, binds []Bind) error {
	for _, b := range binds {
		n, name := root, b.Target
		for part := range strings.SplitSeq(strings.Trim(b.Target, "/"), "/") {
			if n = n.Children[part]; n == nil {
				break
			}
		}
		if n == nil || n.IsDir() && len(n.Children) == 0 {
			continue
		}
		for n.IsDir() && len(n.Children) > 0 {
			first := slices.Min(slices.Collect(maps.Keys(n.Children)))
			n, name = n.Children[first], path.Join(name, first)
		}
		return fail(sandbox.CodeInvalid, "image.build", name, "put it elsewhere, such as in /home/user, or begin with another image",
			"would be hidden: this image shows the machine's own %s there", b.Target)
	}
	return nil
}

// applyLayer applies a layer to the tree and returns the digest of its tar.
func (s *Store) applyLayer(ctx context.Context, tree *layer.Applier, blob layerBlob, literal bool, p Progress, progress func(Progress)) (string, error) {
	subject := fmt.Sprintf("layer %d of %d", p.Layer, p.Layers)
	if blob.digest != "" {
		subject += " (" + blob.digest + ")"
	}
	raw, err := blob.open(ctx)
	if err != nil {
		return "", err
	}
	defer raw.Close()
	in := &meter{ctx: ctx, r: raw, progress: func(n int64) {
		p.Done = n
		progress(p)
	}}
	if blob.digest != "" && !blob.stored {
		in.sum = sha256.New()
	}
	tarStream, err := decompress(in)
	if err != nil {
		return "", fail(sandbox.CodeInvalid, "image.unpack", subject, "", "the compression is broken or not supported")
	}
	defer tarStream.Close()
	ahead := newReadAhead(tarStream)
	out := &meter{ctx: ctx, r: ahead, sum: sha256.New(), check: func(n int64) error {
		if l := s.opts.Limits; n > l.RatioFrom && n/l.Ratio > in.n.Load() {
			return fail(sandbox.CodeExhausted, "image.unpack", subject, "", "it grows more than %d-fold when decompressed", l.Ratio)
		}
		return nil
	}}
	err = tree.Apply(ctx, out, layer.Options{Name: subject, Literal: literal})
	ahead.Close()
	if err != nil {
		return "", err
	}
	// Data after the compressed stream is part of the digest, too.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return "", err
	}
	in.report()
	if in.sum != nil && in.digest() != blob.digest {
		return "", fail(sandbox.CodeInvalid, "image.unpack", subject, "", "its content does not match its digest: it has %s", in.digest())
	}
	if got := out.digest(); blob.diffID != "" && got != blob.diffID {
		return "", fail(sandbox.CodeInvalid, "image.unpack", subject, "", "its files do not match the image's config: they have %s, not %s", got, blob.diffID)
	}
	return out.digest(), nil
}

// meter counts and hashes what is read through it, and fails when its context
// ends.
type meter struct {
	ctx      context.Context
	r        io.Reader
	sum      hash.Hash // may be nil
	n        atomic.Int64
	check    func(n int64) error
	progress func(n int64)
	reported int64
}

// reportEvery is the number of bytes between two progress reports.
const reportEvery = 1 << 20

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	if m.sum != nil {
		m.sum.Write(p[:n])
	}
	total := m.n.Add(int64(n))
	if m.check != nil {
		if err := m.check(total); err != nil {
			return n, err
		}
	}
	if m.progress != nil && total-m.reported >= reportEvery {
		m.report()
	}
	return n, err
}

func (m *meter) report() {
	m.reported = m.n.Load()
	m.progress(m.reported)
}

func (m *meter) digest() string { return "sha256:" + hex.EncodeToString(m.sum.Sum(nil)) }

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// compressed reports whether the first bytes of a file are those of gzip or
// zstd.
func compressed(magic []byte) bool {
	return bytes.HasPrefix(magic, gzipMagic) || bytes.HasPrefix(magic, zstdMagic)
}

// decompress detects gzip and zstd by their first bytes, regardless of the
// media type; other data is returned unchanged.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 1<<17)
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, err
		}
		return broken{z}, nil
	case bytes.Equal(magic, zstdMagic):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return broken{z.IOReadCloser()}, nil
	}
	return io.NopCloser(br), nil
}

// broken marks errors of a decompressor as invalid data.
type broken struct{ io.ReadCloser }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var typed *sandbox.Error
	if err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &typed) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrClosed) {
		return n, err
	}
	return n, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "image.unpack", Message: "the compressed data is broken", Cause: err}
}
