package daemon

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
)

// images shows the image store to builds.
type images struct{ store *image.Store }

func shownImage(i *image.Image) template.Image {
	return template.Image{Digest: i.Digest, Size: i.Size, Config: template.Config(i.Config)}
}

func (i images) Get(ctx context.Context, ref string) (template.Image, error) {
	img, err := i.store.Get(ctx, ref, image.GetOptions{})
	if err != nil {
		return template.Image{}, err
	}
	return shownImage(img), nil
}

func (i images) Private(ctx context.Context, name, ref string, login template.Login) (template.Image, error) {
	img, err := i.store.Private(ctx, name, ref, image.Login(login))
	if err != nil {
		return template.Image{}, err
	}
	return shownImage(img), nil
}

func (i images) Derived(name string) (template.Image, bool, error) {
	img, err := i.store.Derived(name)
	if img == nil || err != nil {
		return template.Image{}, false, err
	}
	return shownImage(img), true, nil
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
	return shownImage(img), nil
}

// templates builds for all tenants.
type templates struct {
	images *image.Store
	cache  *template.Cache
}

// openTemplates opens what builds keep in the state directory.
func (d *Daemon) openTemplates() (*templates, error) {
	store, err := d.node.Images()
	if err != nil {
		return nil, err
	}
	// A crash may have left files of builds behind.
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
	return &templates{store, cache}, nil
}

func (d *Daemon) buildDir() string { return filepath.Join(d.node.Dir(), "builds") }

func (t *templates) Build(ctx context.Context, boxes template.Boxes, req template.Request) (*template.Result, error) {
	b := &template.Builder{Images: images{t.images}, Boxes: boxes, Cache: t.cache}
	return b.Build(ctx, req)
}

func (t *templates) Prune(ctx context.Context, tenant string, since time.Time, keep []string) (int64, error) {
	freed, err := t.cache.Prune(tenant, since)
	if err != nil {
		return freed, err
	}
	n, err := t.images.PruneDerived(ctx, template.ImagePrefix(tenant), since, keep)
	return freed + n, err
}

// BuildTemplate unpacks the files of a build where nobody else can see them,
// and builds.
func (s service) BuildTemplate(ctx context.Context, req api.BuildRequest, tell func(sandbox.BuildEvent)) (sandbox.Template, error) {
	dir, err := os.MkdirTemp(s.builds, "")
	if err != nil {
		return sandbox.Template{}, err
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return sandbox.Template{}, err
	}
	defer root.Close()
	if err := template.Unpack(ctx, req.Files, root); err != nil {
		return sandbox.Template{}, err
	}
	d, err := describe(root, req)
	if err != nil {
		return sandbox.Template{}, err
	}
	d.Start, d.Ready = cmp.Or(req.Start, d.Start), cmp.Or(req.Ready, d.Ready)
	files, err := template.NewFiles(root)
	if err != nil {
		return sandbox.Template{}, err
	}
	t, err := s.Plane.BuildTemplate(ctx, plane.BuildRequest{
		Name: req.Name, Description: d, Files: files, NoCache: req.NoCache, Network: sandbox.Network{Egress: req.Egress},
		Log: func(e template.Event) { tell(sandbox.BuildEvent(e)) },
	})
	return shownTemplate(t), err
}

// describe reads the description of a build from among its files.
func describe(root *os.Root, req api.BuildRequest) (*template.Description, error) {
	name := cmp.Or(req.File, "Dockerfile")
	f, err := root.Open(name)
	if err != nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "template.build", Subject: "file", Message: "the build's files have no such description",
			Hint: "name it with --file, relative to the directory that is built",
		}
	}
	defer f.Close()
	if strings.HasSuffix(name, ".json") {
		return template.ParseJSON(f)
	}
	return template.ParseDockerfile(f, req.Args)
}

func shownTemplate(t store.Template) sandbox.Template { return t.Template }

func (s service) Templates(ctx context.Context) ([]sandbox.Template, error) {
	all, err := s.Plane.Templates(ctx)
	return each(all, shownTemplate), err
}

func (s service) Template(ctx context.Context, ref string) (sandbox.Template, error) {
	t, err := s.Plane.Template(ctx, ref)
	return shownTemplate(t), err
}

func (s service) TagTemplate(ctx context.Context, ref, as string) (sandbox.Template, error) {
	t, err := s.Plane.TagTemplate(ctx, ref, as)
	return shownTemplate(t), err
}
