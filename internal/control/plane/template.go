package plane

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
)

// Builder builds templates in sandboxes that the plane makes for it.
type Builder interface {
	Build(ctx context.Context, boxes template.Boxes, req template.Request) (*template.Result, error)
	// Prune removes steps that no build of the tenant has used since then, and
	// images of the tenant's builds that are not among keep, by digest. It
	// returns how many bytes that freed.
	Prune(ctx context.Context, tenant string, since time.Time, keep []string) (int64, error)
}

// templatePrefix marks the name of a template where an image is asked for.
const templatePrefix = "template:"

// buildLifetime bounds a step of a build, and a box that a crash left behind.
const buildLifetime = 2 * time.Hour

// BuildRequest asks for a template of the caller's tenant.
type BuildRequest struct {
	Name        string // NAME[:TAG]
	Description *template.Description
	Files       *template.Files
	NoCache     bool
	Login       template.Login  // see template.Request
	Network     sandbox.Network // of run steps
	Build       string          // by what a client knows the build; see store.Template
	CPUs        float64         // of sandboxes made of it; 0: what all get
	Memory      int64           // the same, in bytes
	Log         func(template.Event)
}

// BuildTemplate builds a template and gives it its name. Whoever has the name
// of an older one keeps what it was made of.
func (p *Plane) BuildTemplate(ctx context.Context, req BuildRequest) (t store.Template, err error) {
	const op = ops.TemplateBuild
	who, err := guard.Principal(ctx)
	if err != nil {
		return t, err
	}
	record := auditAction(who, control.Action{Op: op, Subject: req.Name})
	spec := sandbox.Spec{Image: req.Description.From, Network: req.Network}
	allowed := func(who key.Principal) error { return mayAsk(who, &spec) }
	base := []string{spec.Image}
	if core.FirstError(who.Allow(op), allowed(who)) == nil {
		if base, err = p.Policies.FetchSigned(ctx, record, &spec, base, control.ImageRequest{}); err != nil {
			return t, core.Named(op, err)
		}
		if err := p.Policies.Permit(ctx, record, &spec, base, policyset.Images, policyset.Network, policyset.Secrets); err != nil {
			return t, core.Named(op, err)
		}
	}
	err = p.Change(ctx, op, guard.Subject{Subject: req.Name}, func(ctx context.Context) (string, error) {
		t, err = p.buildTemplate(ctx, who, req, spec.Image, base)
		return "", err
	}, allowed)
	return t, core.Named(op, err)
}

// buildTemplate builds from an image whose names are base.
func (p *Plane) buildTemplate(ctx context.Context, who key.Principal, req BuildRequest, from string, base []string) (t store.Template, err error) {
	name, tag, err := template.ParseName(req.Name)
	if err != nil {
		return t, err
	}
	if p.cfg.Builder == nil {
		return t, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this daemon builds no templates"}
	}
	d := *req.Description
	if d.From, err = p.imageOf(ctx, who.Tenant, from); err != nil {
		return t, err
	}
	res, err := p.cfg.Builder.Build(ctx, builders{p, who.Tenant, base}, template.Request{
		Tenant: who.Tenant, Description: &d, Files: req.Files, NoCache: req.NoCache, Login: req.Login, Network: req.Network, Log: req.Log,
	})
	if err != nil {
		return t, err
	}
	t = store.Template{Template: sandbox.Template{Name: name, Tag: tag, Image: res.Image.Digest, Base: res.Base, Size: res.Image.Size, Steps: len(d.Steps), Created: p.Store.Now(), Start: d.Start}, Tenant: who.Tenant, Build: req.Build, CPUs: req.CPUs, Memory: req.Memory, Ready: d.Ready}
	if err := p.remember(ctx, &t, req); err != nil {
		return t, err
	}
	return t, p.setTemplate(ctx, t)
}

// imageOf returns the image that ref names: of the template, if it is the name
// of one.
func (p *Plane) imageOf(ctx context.Context, tenant, ref string) (string, error) {
	name, ok := strings.CutPrefix(ref, templatePrefix)
	if !ok {
		return ref, nil
	}
	t, err := p.template(ctx, tenant, name)
	return t.Image, err
}

// ofTemplate completes a Spec whose image is the name of a template. It returns
// that template, or one that starts nothing.
func (p *Plane) ofTemplate(ctx context.Context, tenant string, spec *sandbox.Spec) (t store.Template, err error) {
	name, ok := strings.CutPrefix(spec.Image, templatePrefix)
	if !ok {
		return t, nil
	}
	if t, err = p.template(ctx, tenant, name); err != nil {
		return t, err
	}
	spec.Image = t.Image
	spec.Resources.CPUs = cmp.Or(spec.Resources.CPUs, t.CPUs)
	spec.Resources.Memory = cmp.Or(spec.Resources.Memory, t.Memory)
	if spec.Snapshot == "" && p.remembers(ctx, &t) {
		spec.Snapshot, spec.Image = t.Snapshot, ""
	}
	return t, nil
}

func (p *Plane) template(ctx context.Context, tenant, ref string) (t store.Template, err error) {
	name, tag, err := template.ParseName(ref)
	if err != nil {
		return t, err
	}
	return store.Read(ctx, p.Store, func(tx *store.Tx) (store.Template, error) { return tx.Template(ctx, tenant, name, tag) })
}

// Templates lists the templates of the caller's tenant.
func (p *Plane) Templates(ctx context.Context) ([]store.Template, error) {
	const op = ops.TemplateList
	who, err := p.Look(ctx, op, "")
	if err != nil {
		return nil, err
	}
	all, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Template, error) { return tx.Templates(ctx, who.Tenant) })
	return all, core.Named(op, err)
}

// Template returns a template of the caller's tenant, by NAME[:TAG].
func (p *Plane) Template(ctx context.Context, ref string) (t store.Template, err error) {
	const op = ops.TemplateGet
	who, err := p.Look(ctx, op, ref)
	if err != nil {
		return t, err
	}
	t, err = p.template(ctx, who.Tenant, ref)
	return t, core.Named(op, err)
}

// TagTemplate gives a template one more name, which moves if it is taken.
func (p *Plane) TagTemplate(ctx context.Context, ref, as string) (t store.Template, err error) {
	const op = ops.TemplateTag
	who, err := guard.Principal(ctx)
	if err != nil {
		return t, err
	}
	err = p.Act(ctx, control.Action{Op: op, Subject: as}, func(ctx context.Context) error {
		name, tag, err := template.ParseName(as)
		if err != nil {
			return err
		}
		if t, err = p.template(ctx, who.Tenant, ref); err != nil {
			return err
		}
		t.Name, t.Tag = name, tag
		return p.setTemplate(ctx, t)
	})
	return t, core.Named(op, err)
}

// RemoveTemplate forgets the name of a template. Sandboxes made of it live on.
func (p *Plane) RemoveTemplate(ctx context.Context, ref string) error {
	const op = ops.TemplateRemove
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return core.Named(op, p.Act(ctx, control.Action{Op: op, Subject: ref}, func(ctx context.Context) error {
		name, tag, err := template.ParseName(ref)
		if err != nil {
			return err
		}
		return p.replaceTemplate(ctx, who.Tenant, name, tag, func(tx *store.Tx) error { return tx.RemoveTemplate(ctx, who.Tenant, name, tag) })
	}))
}

// PruneTemplates removes what builds of the caller's tenant have left behind
// and have not used for some time. Templates stay.
func (p *Plane) PruneTemplates(ctx context.Context, unused time.Duration) (freed int64, err error) {
	const op = ops.TemplatePrune
	who, err := guard.Principal(ctx)
	if err != nil {
		return 0, err
	}
	err = p.Act(ctx, control.Action{Op: op}, func(ctx context.Context) error {
		if p.cfg.Builder == nil {
			return nil
		}
		all, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Template, error) { return tx.Templates(ctx, who.Tenant) })
		if err != nil {
			return err
		}
		keep := make([]string, len(all))
		for i, t := range all {
			keep[i] = t.Image
		}
		freed, err = p.cfg.Builder.Prune(ctx, who.Tenant, p.Store.Now().Add(-unused), keep)
		return err
	})
	return freed, core.Named(op, err)
}

// builders makes the sandboxes of builds as whoever asked for the build.
type builders struct {
	p      *Plane
	tenant string
	base   []string // names of the image that it began with
}

func (b builders) Open(ctx context.Context, digest string, network sandbox.Network) (template.Box, error) {
	return b.with(ctx, sandbox.Spec{Image: digest, Network: network})
}

// with makes a sandbox of a build.
func (b builders) with(ctx context.Context, spec sandbox.Spec) (box buildBox, err error) {
	life := buildLifetime
	if limit := b.p.Policies.Set().Caps(policyset.About{Tenant: b.tenant}).Lifetime; limit > 0 {
		life = min(life, limit)
	}
	spec.Name, spec.Lifetime = "build-"+strings.ToLower(rand.Text()), sandbox.Lifetime{Timeout: life}
	made, err := b.p.Create(ctx, CreateRequest{Spec: spec, Pull: control.PullNever, base: b.base, bound: true})
	if err != nil {
		return box, err
	}
	opened, err := b.p.Exec.Open(ctx, string(made.ID))
	if err != nil {
		return box, errors.Join(err, b.p.Destroy(context.WithoutCancel(ctx), string(made.ID)))
	}
	return buildBox{b.p, opened}, nil
}

// buildBox is a sandbox of a build.
type buildBox struct {
	p   *Plane
	box *exec.Handle
}

// Close destroys the sandbox; whoever asked for the build may be gone.
func (b buildBox) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return b.p.Destroy(ctx, string(b.box.ID()))
}

func (b buildBox) Diff(ctx context.Context, w io.Writer) error { return b.box.Diff(ctx, w) }

func (b buildBox) ReadFile(ctx context.Context, name string, max int64) ([]byte, error) {
	r, _, err := b.box.Files().Read(ctx, name, driver.ReadOptions{Length: max})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func (b buildBox) Exec(ctx context.Context, cmd sandbox.Command, out io.Writer) (exit sandbox.Exit, err error) {
	proc, err := b.box.Exec(ctx, cmd)
	if err != nil {
		return exit, err
	}
	defer proc.Close()
	// Closing the process ends its streams when the build is given up.
	defer context.AfterFunc(ctx, func() { _ = proc.Close() })()
	both := &oneAtATime{w: out}
	var streams sync.WaitGroup
	for _, r := range []io.Reader{proc.Stdout(), proc.Stderr()} {
		streams.Go(func() { _, _ = io.Copy(both, r) })
	}
	streams.Wait()
	return proc.Wait(ctx)
}

// oneAtATime lets two streams write to one place.
type oneAtATime struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *oneAtATime) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(b)
}
