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
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// An image that no registry has travels between machines as a tar archive: a
// manifest, then the layers in its order. The other store has it under the digest
// of the manifest, which has digests of all layers, and each layer under its own
// digest. So nobody can put other content in the place of an image, and the
// layers of pulled images are not replaced.

const (
	lentVersion  = 1
	lentManifest = "+image.json"
	lentLayers   = "layers/" // and the hexadecimal digest
)

// lentAbout is the manifest.
type lentAbout struct {
	Version  int         `json:"version"`
	Platform string      `json:"platform"`
	Created  time.Time   `json:"created,omitzero"`
	Config   Config      `json:"config"`
	Layers   []lentLayer `json:"layers"` // top first
}

// lentLayer is a layer file.
type lentLayer struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Provenance is where an image came from.
type Provenance struct {
	Pulled bool     // a registry has it
	Names  []string // all of its names, if it was not pulled
}

// IsName reports whether a name of an image has the form of a registry's. Such a
// name was pulled, or was given by Import.
func IsName(name string) bool {
	r, err := parseReference(name)
	return err == nil && r.kind == kindRegistry
}

// Lent is an image for Accept of another store. It is safe for concurrent use.
type Lent struct {
	store  *Store
	image  *Image
	digest string
	about  []byte
	layers []lentLayer
}

// Digest is the digest of the image in the other store.
func (l *Lent) Digest() string { return l.digest }

// Lend returns an image of the store, by its exact name or digest, if may allows
// it. It returns nil if there is no such image, if may does not allow it, and for
// an image that shows the files of this machine. The layers are read the first
// time.
func (s *Store) Lend(ctx context.Context, ref string, may func(Provenance) bool) (*Lent, error) {
	digest, err := s.exactly(ref)
	if err != nil || digest == "" {
		return nil, err
	}
	rec, err := s.readImage(digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, internal("image.lend", ref, err)
	}
	from := Provenance{Pulled: len(rec.Blobs) > 0}
	if !from.Pulled {
		x, err := s.readIndex()
		if err != nil {
			return nil, internal("image.lend", ref, err)
		}
		from.Names = x.names(digest)
	}
	if !may(from) || len(rec.Binds) > 0 {
		return nil, nil
	}
	l := &Lent{store: s, image: s.image(rec, digest, nil)}
	if err := l.describe(ctx, rec); err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, nil // it was removed meanwhile
		}
		return nil, classify("image.lend", ref, err)
	}
	s.lent.Store(digest, l.digest)
	return l, nil
}

// exactly returns the digest of an image by its name or digest. Empty: there is
// none. Other machines may know names that are none here.
func (s *Store) exactly(ref string) (digest string, err error) {
	r, err := parseReference(ref)
	if err != nil {
		return "", nil //nolint:nilerr // see above
	}
	if r.kind == kindDigest {
		return r.name, nil
	}
	rec, err := s.readRef(r.name, "linux/"+runtime.GOARCH)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", internal("image.lend", ref, err)
	}
	return rec.Digest, nil
}

// LentAs returns the digest under which other stores have an image, if Lend has
// returned it since the store was opened. Else it returns ref.
func (s *Store) LentAs(ref string) string {
	if digest, err := s.exactly(ref); err == nil {
		if lent, ok := s.lent.Load(digest); ok {
			return lent.(string)
		}
	}
	return ref
}

// describe makes the manifest.
func (l *Lent) describe(ctx context.Context, rec *imageRecord) error {
	files, err := l.image.OpenLayers()
	if err != nil {
		return err
	}
	defer closeFiles(files)
	about := lentAbout{Version: lentVersion, Platform: rec.Platform, Created: rec.Created, Config: rec.Config}
	for i, key := range l.image.Layers {
		known, ok := l.store.sums.Load(key)
		if !ok {
			sum := sha256.New()
			n, err := io.Copy(sum, &meter{ctx: ctx, r: files[i]})
			if err != nil {
				return err
			}
			known = lentLayer{"sha256:" + hex.EncodeToString(sum.Sum(nil)), n}
			l.store.sums.Store(key, known)
		}
		about.Layers = append(about.Layers, known.(lentLayer))
	}
	if l.about, err = json.Marshal(about); err != nil {
		return err
	}
	l.layers, l.digest = about.Layers, "sha256:"+hexSum(l.about)
	return nil
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Write writes the archive for Accept.
func (l *Lent) Write(ctx context.Context, w io.Writer) error {
	files, err := l.image.OpenLayers()
	if err != nil {
		return err
	}
	defer closeFiles(files)
	tw := tar.NewWriter(w)
	put := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600}); err != nil {
			return err
		}
		_, err := io.Copy(tw, &meter{ctx: ctx, r: r})
		return err
	}
	if err := put(lentManifest, int64(len(l.about)), bytes.NewReader(l.about)); err != nil {
		return err
	}
	for i, layer := range l.layers {
		sum := sha256.New()
		if err := put(lentLayers+strings.TrimPrefix(layer.Digest, "sha256:"), layer.Size, io.TeeReader(files[i], sum)); err != nil {
			return err
		}
		if "sha256:"+hex.EncodeToString(sum.Sum(nil)) != layer.Digest {
			l.store.sums.Delete(l.image.Layers[i])
			return fail(sandbox.CodeConflict, "image.lend", l.image.Ref, "try again", "a layer of the image has changed")
		}
	}
	return tw.Close()
}

// Accept stores an image that another store lends, under the digest that it has
// there. What is not exactly that image is CodeInvalid, and nothing of it is
// stored. The image has no name: only who knows its digest can use it.
func (s *Store) Accept(ctx context.Context, digest string, r io.Reader) (*Image, error) {
	return s.AcceptAs(ctx, digest, digest, r)
}

// AcceptAs is Accept, and stores the image under the digest own, which it has in the
// store that lends it. The caller knows from elsewhere that this is the same image.
// An image that the store has already stays as it is.
func (s *Store) AcceptAs(ctx context.Context, own, digest string, r io.Reader) (*Image, error) {
	img, err := s.accept(ctx, own, digest, r)
	if err != nil {
		return nil, classify("image.import", digest, err)
	}
	return img, nil
}

// Has reports whether the store has an image, by its digest.
func (s *Store) Has(digest string) (bool, error) {
	_, err := s.ready(digest, digest)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, internal("image.get", digest, err)
	}
	return true, nil
}

func (s *Store) accept(ctx context.Context, as, digest string, r io.Reader) (*Image, error) {
	h, ok := digestHex(digest)
	if _, valid := digestHex(as); !ok || !valid {
		return nil, fail(sandbox.CodeInvalid, "image.import", digest, "", "not a digest")
	}
	gc, err := s.lock(ctx, lockGC, unix.LOCK_SH, nil)
	if err != nil {
		return nil, err
	}
	defer gc.Close()
	own, err := s.lock(ctx, "lent-"+h, unix.LOCK_EX, nil)
	if err != nil {
		return nil, err
	}
	defer own.Close()
	in := &acceptance{s: s, as: as, digest: digest, tar: tar.NewReader(&meter{ctx: ctx, r: r})}
	defer in.discard()
	if err := in.read(); err != nil {
		return nil, err
	}
	return in.keep(ctx)
}

// acceptance is an Accept in progress.
type acceptance struct {
	s      *Store
	as     string // digest in this store
	digest string
	tar    *tar.Reader
	about  lentAbout
	files  []*tempFile
	size   int64
}

func (a *acceptance) discard() {
	for _, f := range a.files {
		f.discard()
	}
}

func (a *acceptance) invalid(format string, args ...any) error {
	return fail(sandbox.CodeInvalid, "image.import", a.digest, "", "this is not the image with that digest, or it is incomplete: "+format, args...)
}

// next returns the error for a tar that does not continue with a file of that
// name and size. A negative size is any up to limit.
func (a *acceptance) next(name string, size, limit int64) error {
	h, err := a.tar.Next()
	switch {
	case err != nil:
		return a.broken(err)
	case h.Name != name || h.Typeflag != tar.TypeReg || size >= 0 && h.Size != size || h.Size > limit:
		return a.invalid("it has another file than %s", name)
	}
	return nil
}

// broken is the error for a tar that cannot be read.
func (a *acceptance) broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrInsecurePath) {
		return a.invalid("the archive is broken")
	}
	return err
}

// read reads the archive into temporary files.
func (a *acceptance) read() error {
	if err := a.next(lentManifest, -1, a.s.opts.Limits.Manifest); err != nil {
		return err
	}
	text, err := io.ReadAll(a.tar)
	if err != nil {
		return a.broken(err)
	}
	if "sha256:"+hexSum(text) != a.digest {
		return a.invalid("its manifest has another digest")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&a.about); err != nil {
		return a.invalid("its manifest is not valid")
	}
	if err := a.check(); err != nil {
		return err
	}
	for _, l := range a.about.Layers {
		if err := a.layer(l); err != nil {
			return err
		}
	}
	if _, err := a.tar.Next(); !errors.Is(err, io.EOF) {
		return a.invalid("it has more files than its manifest")
	}
	return nil
}

// check refuses a manifest that this store cannot use.
func (a *acceptance) check() error {
	m := &a.about
	platform, err := parsePlatform(m.Platform)
	total := int64(0)
	for _, l := range m.Layers {
		if _, ok := digestHex(l.Digest); !ok || l.Size <= 0 || l.Size > a.s.opts.Limits.ImageSize-total {
			return a.invalid("a layer is not valid")
		}
		total += l.Size
	}
	switch most := a.s.maxLayers(); {
	case m.Version != lentVersion || err != nil || platform != m.Platform || len(m.Layers) == 0:
		return a.invalid("its manifest is not valid")
	case len(m.Layers) > most:
		return fail(sandbox.CodeUnsupported, "image.import", a.digest, "", "the image has %d layers, and this machine uses images of at most %d", len(m.Layers), most)
	}
	return nil
}

// layer reads a layer into a temporary file.
func (a *acceptance) layer(l lentLayer) error {
	h, _ := digestHex(l.Digest)
	if err := a.next(lentLayers+h, l.Size, l.Size); err != nil {
		return err
	}
	f, err := a.s.createTemp()
	if err != nil {
		return err
	}
	a.files = append(a.files, f)
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, sum), a.tar); err != nil {
		return a.broken(err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != h {
		return a.invalid("a layer has another digest")
	}
	if _, err := erofs.Open(f); err != nil {
		return a.invalid("a layer is no file system")
	}
	a.size += l.Size
	return nil
}

// keep gives the files their names and records the image. A layer that is there
// and damaged is replaced; sandboxes that use it keep the old file.
func (a *acceptance) keep(ctx context.Context) (*Image, error) {
	s, keys := a.s, make([]string, len(a.files))
	for i, f := range a.files {
		keys[i], _ = digestHex(a.about.Layers[i].Digest)
		same, err := s.sameLayer(keys[i])
		if err == nil && !same {
			err = f.publish(s.rootfsPath(keys[i]))
		}
		if err != nil {
			return nil, err
		}
		s.sums.Store(keys[i], a.about.Layers[i])
	}
	l, err := s.lock(ctx, lockIndex, unix.LOCK_EX, nil)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := s.haveLayers(keys); err != nil {
		return nil, fail(sandbox.CodeConflict, "image.import", a.digest, "try again", "a layer was removed meanwhile")
	}
	if a.as != a.digest {
		if img, err := s.ready(a.as, a.as); err == nil {
			return img, nil
		}
	}
	rec := &imageRecord{
		Version: recordVersion, Digest: a.as, Platform: a.about.Platform, Created: a.about.Created, Pulled: time.Now().UTC(),
		Size: a.size, Rootfs: keys[0], Lower: keys[1:], Config: a.about.Config,
	}
	if len(rec.Lower) > 0 {
		rec.Version = layeredVersion
	}
	h, _ := digestHex(a.as)
	if err := s.writeRecord(rec, "images", h+".json"); err != nil {
		return nil, err
	}
	return s.image(rec, a.as, nil), nil
}

// sameLayer reports whether the store has a layer that was lent, undamaged.
func (s *Store) sameLayer(key string) (bool, error) {
	f, err := os.Open(s.rootfsPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return false, nil //nolint:nilerr // it cannot be read, so it is damaged
	}
	return hex.EncodeToString(sum.Sum(nil)) == key, nil
}
