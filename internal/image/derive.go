package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/mkfs"
	"github.com/atoll-run/atoll/internal/image/stack"
	"github.com/atoll-run/atoll/sandbox"
)

// Layer is the difference between two root file systems: a tar as in an OCI
// image, possibly compressed.
type Layer struct {
	Name string // for errors
	Open func() (io.ReadCloser, error)
}

// Derive creates an image from base and layers on top of it, lowest first, with
// the configuration cfg, and gives it a name. The name can be anything that is
// not a reference. If it is in use, it is moved. Deriving the same image again
// needs no more disk space, but builds it again.
func (s *Store) Derive(ctx context.Context, name string, base *Image, layers []Layer, cfg Config) (*Image, error) {
	j := &job{s: s, ref: &reference{kind: kindDir, name: name}, as: name, platform: base.Platform, progress: serialized(nil)}
	img, err := j.derive(ctx, base, layers, cfg)
	if err != nil {
		return nil, classify("image.derive", name, err)
	}
	return img, nil
}

func (j *job) derive(ctx context.Context, base *Image, layers []Layer, cfg Config) (*Image, error) {
	gc, err := j.s.lock(ctx, lockGC, unix.LOCK_SH, nil)
	if err != nil {
		return nil, err
	}
	defer gc.Close()
	files, err := base.OpenLayers()
	if err != nil {
		return nil, err
	}
	defer closeFiles(files)
	c := &content{platform: base.Platform, created: time.Now().UTC(), config: cfg, binds: base.Binds}
	for _, l := range layers {
		c.layers = append(c.layers, layerBlob{open: func(context.Context) (io.ReadCloser, error) { return l.Open() }})
	}
	for {
		built := rootfs{base.Layers, base.Size}
		if len(layers) > 0 {
			if built, err = j.s.buildOver(ctx, base, files, c, j.progress); err != nil {
				return nil, err
			}
		}
		img, err := j.record(ctx, c, derivedDigest(built.layers[0], c), built, "")
		switch {
		case !errors.Is(err, errRemoved):
			return img, err
		case len(layers) == 0:
			return nil, base.removed()
		}
	}
}

// buildOver builds a layer of c on top of base. If the image would have too
// many layers, it merges upper layers of base into the new one.
func (s *Store) buildOver(ctx context.Context, base *Image, files []*os.File, c *content, progress func(Progress)) (rootfs, error) {
	over, err := s.lower(base, files)
	if err != nil {
		return rootfs{}, err
	}
	tmp, ids, size, err := s.writeLayer(ctx, c, over, progress)
	if err != nil {
		return rootfs{}, err
	}
	defer tmp.discard()
	key := layerKey(base.Layers, over.merged, ids)
	built := rootfs{append([]string{key}, base.Layers[over.merged:]...), size + over.size}
	return built, s.keepLayer(tmp, key)
}

// lower describes the layers below a new one.
type lower struct {
	all    *stack.Tree
	kept   *mkfs.Node // files of the layers that stay; nil if none stays
	merged int        // number of upper layers merged into the new one
	size   int64      // bytes of the layers that stay
}

// lower reads the layers of an image from files, top first.
func (s *Store) lower(base *Image, files []*os.File) (*lower, error) {
	sizes := make([]int64, len(files))
	for i, f := range files {
		fi, err := f.Stat()
		if err != nil {
			return nil, err
		}
		sizes[i] = fi.Size()
	}
	over := &lower{all: stack.New(), merged: merged(sizes, s.maxLayers())}
	for i := len(files) - 1; i >= 0; i-- {
		if err := over.all.Add(files[i]); err != nil {
			return nil, internal("image.derive", base.Ref, fmt.Errorf("layer %s: %w", base.Layers[i], err))
		}
		if i >= over.merged {
			over.size += sizes[i]
		}
		if i == over.merged {
			over.kept = stack.Directories(over.all.Root)
		}
	}
	return over, nil
}

// merged returns how many layers, with sizes from top to bottom, to merge into
// a new one so that the image has at most most layers. The lowest layer is
// large and probably shared, so it is merged only if necessary. The number is
// chosen to cost the least per layer saved.
func merged(sizes []int64, most int) int {
	n := len(sizes)
	if n < most {
		return 0
	}
	if most == 1 {
		return n
	}
	best, least, cost := 0, 0.0, int64(0)
	for m := 1; m < n; m++ {
		cost += sizes[m-1]
		if n-m+1 > most {
			continue
		}
		if each := float64(cost) / float64(m); best == 0 || each <= least {
			best, least = m, each
		}
	}
	return best
}

// delta returns what root adds to the layers that stay, and writes its content
// to out.
func (l *lower) delta(ctx context.Context, root *mkfs.Node, out *mkfs.Writer) (*mkfs.Node, error) {
	if l.kept != nil {
		root = stack.Delta(l.kept, root)
	}
	return root, l.copy(ctx, root, out, map[*mkfs.Node]bool{})
}

// copy copies the content of files from the layers.
func (l *lower) copy(ctx context.Context, dir *mkfs.Node, out *mkfs.Writer, done map[*mkfs.Node]bool) error {
	for _, name := range slices.Sorted(maps.Keys(dir.Children)) {
		n := dir.Children[name]
		if n.IsDir() {
			if err := l.copy(ctx, n, out, done); err != nil {
				return err
			}
			continue
		}
		if done[n] || !l.all.Has(n) {
			continue
		}
		done[n] = true
		if err := ctx.Err(); err != nil {
			return err
		}
		in, err := l.all.Open(n)
		if err != nil {
			return err
		}
		n.Block, n.Size, err = out.WriteFile(in)
		in.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// layerKey returns the name of a layer: a hash of the layers below it (top
// first), the number of merged layers, and the digests of its tars.
func layerKey(base []string, merged int, diffIDs []string) string {
	h := sha256.New()
	fmt.Fprintf(h, "atoll layer %d merged=%d\n", layeredVersion, merged)
	for _, key := range base {
		fmt.Fprintln(h, key)
	}
	for _, id := range diffIDs {
		fmt.Fprintln(h, id)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// derivedDigest returns a digest, of its files and configuration, for an image
// without a manifest.
func derivedDigest(layer string, c *content) string {
	said, _ := json.Marshal([]any{c.config, c.binds, c.platform}) // cannot fail: only strings
	sum := sha256.Sum256(fmt.Appendf(nil, "atoll derived image %d\n%s\n%s", recordVersion, layer, said))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Derived returns the image to which Derive gave that name, or nil.
func (s *Store) Derived(name string) (*Image, error) {
	platform, err := parsePlatform("")
	if err != nil {
		return nil, err
	}
	rec, err := s.readRef(name, platform)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, internal("image.get", name, err)
	}
	img, err := s.ready(rec.Digest, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return img, classify("image.get", name, err)
}

// PruneDerived removes images of Derive whose names have that prefix, unless
// they are newer than since, in use, or their digest is in keep. It returns the
// number of bytes freed.
func (s *Store) PruneDerived(ctx context.Context, prefix string, since time.Time, keep []string) (int64, error) {
	const op = "image.prune"
	l, err := s.lock(ctx, lockIndex, unix.LOCK_EX, nil)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	x, err := s.readIndex()
	if err != nil {
		return 0, internal(op, prefix, err)
	}
	sweep, err := s.newSweeper(ctx, x)
	if err != nil {
		return 0, classify(op, prefix, err)
	}
	for _, rec := range slices.Clone(x.images) {
		names := x.names(rec.Digest)
		derived := len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool { return !strings.HasPrefix(n, prefix) })
		if !derived || rec.Pulled.After(since) || slices.Contains(keep, rec.Digest) {
			continue
		}
		if err := s.removeImage(x, rec, sweep); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
			return sweep.bytes, classify(op, prefix, err)
		}
	}
	return sweep.bytes, nil
}
