package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// Layer is a difference between two root file systems: a tar as an OCI image
// has it, possibly compressed.
type Layer struct {
	Name string // in errors
	Open func() (io.ReadCloser, error)
}

// Derive makes an image of base and of layers over it, the lowest first, that
// wants to run as cfg says, and gives it a name. The name is the caller's
// choice of anything that is no reference; it moves when it is taken. Making
// the same image again is cheap only in space.
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
	rootfs, err := base.OpenRootfs()
	if err != nil {
		return nil, err
	}
	defer rootfs.Close()
	tree, err := erofs.Open(rootfs)
	if err != nil {
		return nil, err
	}
	c := &content{platform: base.Platform, created: time.Now().UTC(), config: cfg, binds: base.Binds}
	c.layers = append(c.layers, layerBlob{whole: true, open: func(ctx context.Context) (io.ReadCloser, error) {
		return treeAsTar(ctx, tree), nil
	}})
	for _, l := range layers {
		c.layers = append(c.layers, layerBlob{open: func(context.Context) (io.ReadCloser, error) { return l.Open() }})
	}
	for {
		built, err := j.overlay(ctx, base, c)
		if err != nil {
			return nil, err
		}
		img, err := j.record(ctx, c, derivedDigest(built.key, c), built, "")
		if len(layers) == 0 || !errors.Is(err, errRemoved) {
			return img, err
		}
	}
}

// overlay builds the file system of c, which is base's own if nothing lies over
// it.
func (j *job) overlay(ctx context.Context, base *Image, c *content) (rootfs, error) {
	if len(c.layers) > 1 {
		return j.s.buildRootfs(ctx, c, j.progress)
	}
	rec, err := j.s.readImage(base.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		return rootfs{}, base.removed()
	}
	if err != nil {
		return rootfs{}, err
	}
	return rootfs{rec.Rootfs, rec.Size}, nil
}

// derivedDigest names an image that has no manifest by its files and by what
// it says.
func derivedDigest(rootfs string, c *content) string {
	said, _ := json.Marshal([]any{c.config, c.binds, c.platform}) // strings only
	sum := sha256.Sum256(fmt.Appendf(nil, "atoll derived image %d\n%s\n%s", recordVersion, rootfs, said))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// treeAsTar streams a root file system as a tar that is the same every time.
func treeAsTar(ctx context.Context, tree fs.FS) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		t := &tarrer{ctx: ctx, tree: tree, out: tar.NewWriter(w), links: map[int64]string{}}
		err := fs.WalkDir(tree, ".", t.file)
		if err == nil {
			err = t.out.Close()
		}
		w.CloseWithError(err)
	}()
	return r
}

// tarrer writes the files of an image as a tar.
type tarrer struct {
	ctx   context.Context
	tree  fs.FS
	out   *tar.Writer
	links map[int64]string // first name of files with several, by inode
}

func (t *tarrer) file(name string, _ fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if err := t.ctx.Err(); err != nil {
		return err
	}
	fi, err := fs.Lstat(t.tree, name)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*erofs.Stat)
	if !ok {
		return &sandbox.Error{Code: sandbox.CodeInternal, Message: "the image tells no owners"}
	}
	h := &tar.Header{
		Name: name, Mode: int64(modeBits(st.Mode)), Uid: int(st.UID), Gid: int(st.GID), Format: tar.FormatPAX,
		ModTime: time.Unix(int64(st.Mtime), int64(st.MtimeNs)), //nolint:gosec // bounded when the image was written
	}
	switch st.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = fs.ReadLink(t.tree, name); err != nil {
			return err
		}
	case fs.ModeNamedPipe:
		h.Typeflag = tar.TypeFifo
	case 0:
		return t.regular(name, st, h)
	default:
		return nil // the store makes images without devices and sockets
	}
	return t.out.WriteHeader(h)
}

func (t *tarrer) regular(name string, st *erofs.Stat, h *tar.Header) error {
	if first, ok := t.links[st.Ino]; ok {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return t.out.WriteHeader(h)
	}
	if st.Nlink > 1 {
		t.links[st.Ino] = name
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := t.out.WriteHeader(h); err != nil {
		return err
	}
	in, err := t.tree.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(t.out, in)
	return err
}

// modeBits returns a mode's permission, set-id and sticky bits as in chmod.
func modeBits(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// Derived returns the image that Derive gave that name, or nil.
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

// PruneDerived removes the images that Derive gave names with that prefix,
// unless they are younger than since, in use, or among keep, by digest. It
// returns how many bytes that freed.
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
