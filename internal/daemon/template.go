package daemon

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/template"
)

// images adapts the image store to builds.
type images struct{ store *image.Store }

func toImage(i *image.Image) template.Image {
	return template.Image{Digest: i.Digest, Size: i.Size, Config: template.Config(i.Config)}
}

func (i images) Get(ctx context.Context, ref string) (template.Image, error) {
	img, err := i.store.Get(ctx, ref, image.GetOptions{})
	if err != nil {
		return template.Image{}, err
	}
	return toImage(img), nil
}

func (i images) Private(ctx context.Context, name, ref string, login template.Login) (template.Image, error) {
	img, err := i.store.Private(ctx, name, ref, image.Login(login))
	if err != nil {
		return template.Image{}, err
	}
	return toImage(img), nil
}

func (i images) Derived(name string) (template.Image, bool, error) {
	img, err := i.store.Derived(name)
	if img == nil || err != nil {
		return template.Image{}, false, err
	}
	return toImage(img), true, nil
}

func (i images) Derive(ctx context.Context, name, base string, layers []template.Layer, cfg template.Config) (template.Image, error) {
	from, err := i.store.Get(ctx, base, image.GetOptions{})
	if err != nil {
		return template.Image{}, err
	}
	over := make([]image.Layer, len(layers))
	for n, l := range layers {
		over[n] = image.Layer(l)
	}
	img, err := i.store.Derive(ctx, name, from, over, image.Config(cfg))
	if err != nil {
		return template.Image{}, err
	}
	return toImage(img), nil
}

// imageBuilder builds images for all tenants.
type imageBuilder struct {
	images *image.Store
	cache  *template.Cache
}

// openTemplates opens the build data in the state directory.
func (d *Daemon) openTemplates() (*imageBuilder, error) {
	store, err := d.node.Images()
	if err != nil {
		return nil, err
	}
	// A crash may have left build files.
	if err := os.RemoveAll(d.buildDir()); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.buildDir(), 0o700); err != nil {
		return nil, err
	}
	cache, err := template.OpenCache(filepath.Join(d.node.Dir(), "templates"))
	if err != nil {
		return nil, err
	}
	d.onClose(cache.Close)
	return &imageBuilder{store, cache}, nil
}

func (d *Daemon) buildDir() string { return filepath.Join(d.node.Dir(), "builds") }

func (t *imageBuilder) Build(ctx context.Context, sandboxes template.Sandboxes, req template.Request) (*template.Result, error) {
	b := &template.Builder{Images: images{t.images}, Sandboxes: sandboxes, Cache: t.cache}
	return b.Build(ctx, req)
}

func (t *imageBuilder) Prune(ctx context.Context, tenant string, since time.Time, keep []string) (int64, error) {
	freed, err := t.cache.Prune(tenant, since)
	if err != nil {
		return freed, err
	}
	n, err := t.images.PruneDerived(ctx, template.ImagePrefix(tenant), since, keep)
	return freed + n, err
}
