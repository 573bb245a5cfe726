package templates

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// buildLifetime limits a build step, and the life of a sandbox that a crashed
// build left.
const buildLifetime = 2 * time.Hour

// BuildFromTar builds a template from a tar of files, which includes its
// description, and stores it under its name. It calls tell with the progress,
// from one goroutine at a time.
func (svc *Service) BuildFromTar(ctx context.Context, req template.TarRequest, tell func(durable.BuildEvent)) (durable.Template, error) {
	dir, err := os.MkdirTemp(svc.cfg.Scratch, "")
	if err != nil {
		return durable.Template{}, err
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return durable.Template{}, err
	}
	defer root.Close()
	if err := template.Unpack(ctx, req.Files, root); err != nil {
		return durable.Template{}, err
	}
	d, err := describe(root, req)
	if err != nil {
		return durable.Template{}, err
	}
	d.Start, d.Ready = cmp.Or(req.Start, d.Start), cmp.Or(req.Ready, d.Ready)
	files, err := template.NewFiles(root)
	if err != nil {
		return durable.Template{}, err
	}
	return svc.BuildTemplate(ctx, template.NamedRequest{
		Name: req.Name, Description: d, Files: files, NoCache: req.NoCache, Network: sandbox.Network{Egress: req.Egress}, Log: tell,
	})
}

// describe reads the build description from the files.
func describe(root *os.Root, req template.TarRequest) (*template.Description, error) {
	name := cmp.Or(req.File, "Dockerfile")
	f, err := root.Open(name)
	if err != nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "template.build", Subject: "file", Message: "the build files do not contain this description",
			Hint: "name it with --file, relative to the directory that is built",
		}
	}
	defer f.Close()
	if strings.HasSuffix(name, ".json") {
		return template.ParseJSON(f)
	}
	return template.ParseDockerfile(f, req.Args)
}

// BuildTemplate builds a template and stores it under its name. Sandboxes of an
// older template with that name are not affected.
func (svc *Service) BuildTemplate(ctx context.Context, req template.NamedRequest) (_ durable.Template, err error) {
	const op = ops.TemplateBuild
	defer core.Name(op, &err)
	who, err := guard.Principal(ctx)
	if err != nil {
		return durable.Template{}, err
	}
	var t store.Template
	record := guard.Action(who, op, guard.Subject{Subject: req.Name})
	spec := sandbox.Spec{Image: req.Description.From, Network: req.Network}
	allowed := func(who key.Principal) error { return guard.AllowSpec(who, &spec) }
	base, err := svc.cfg.Policies.AskedImage(ctx, who.Tenant, &spec)
	if err != nil {
		return t.Template, err
	}
	if core.FirstError(who.Allow(op), allowed(who)) == nil {
		if base, err = svc.cfg.Policies.FetchSigned(ctx, record, &spec, base, engine.ImageRequest{}); err != nil {
			return t.Template, err
		}
		if err := svc.cfg.Policies.Permit(ctx, record, &spec, base, policyset.Images, policyset.Network, policyset.Secrets); err != nil {
			return t.Template, err
		}
	}
	err = svc.Change(ctx, op, guard.Subject{Subject: req.Name}, func(ctx context.Context) (string, error) {
		t, err = svc.buildTemplate(ctx, who, req, spec.Image, base)
		return "", err
	}, allowed)
	return t.Template, err
}

// buildTemplate builds from an image; base are the names of that image.
func (svc *Service) buildTemplate(ctx context.Context, who key.Principal, req template.NamedRequest, from string, base []string) (t store.Template, err error) {
	name, tag, err := ownRef(who.Tenant, req.Name)
	if err != nil {
		return t, err
	}
	if svc.cfg.Builder == nil {
		return t, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this daemon cannot build templates"}
	}
	d := *req.Description
	image, parent, err := svc.imageOf(ctx, who.Tenant, from)
	if err == nil {
		err = svc.cfg.Snapshots.FetchImage(ctx, who.Tenant, image)
	}
	if err != nil {
		return t, err
	}
	t = store.Template{Template: durable.Template{Name: name, Tag: tag}, Tenant: who.Tenant, Withheld: withheld(&req, &parent)}
	// Before the build, because recording the template would fail after it.
	if err := svc.Store.View(ctx, func(tx *store.Tx) error { return tx.Templates().Fits(ctx, &t) }); err != nil {
		return t, err
	}
	d.From = image
	res, err := svc.cfg.Builder.Build(ctx, builders{svc, who.Tenant, base}, template.Request{
		Tenant: who.Tenant, Description: &d, Files: req.Files, NoCache: req.NoCache, Login: req.Login, Network: req.Network, Log: req.Log,
	})
	if err != nil {
		return t, err
	}
	t.Template = durable.Template{
		Name: name, Tag: tag, Image: res.Image.Digest, Base: res.Base, Size: res.Image.Size, Steps: len(d.Steps), Created: svc.Store.Now(),
		Start: d.Start, Build: req.Build, CPUs: req.CPUs, Memory: req.Memory,
	}
	t.Ready = d.Ready
	if err := svc.remember(ctx, &t, req); err != nil {
		return t, err
	}
	return t, svc.setTemplate(ctx, &t)
}

// withheld returns why a template may not be shared, if it may not: its image is
// one tenant's own. What is built from such a template may not be shared either.
func withheld(req *template.NamedRequest, parent *store.Template) string {
	switch {
	case req.Login != nil:
		return store.WithheldLogin
	case strings.HasPrefix(req.Description.From, "sha256:"):
		return store.WithheldDigest
	}
	return parent.Withheld
}

// builders creates the sandboxes of a build on behalf of the caller.
type builders struct {
	svc    *Service
	tenant string
	base   []string // names of the image that the build began with
}

func (b builders) Open(ctx context.Context, digest string, network sandbox.Network) (template.Sandbox, error) {
	return b.with(ctx, sandbox.Spec{Image: digest, Network: network})
}

// with creates a build sandbox.
func (b builders) with(ctx context.Context, spec sandbox.Spec) (sb buildSandbox, err error) {
	life := buildLifetime
	if limit := b.svc.cfg.Policies.Set().Caps(policyset.About{Tenant: b.tenant}).Lifetime; limit > 0 {
		life = min(life, limit)
	}
	spec.Name, spec.Lifetime = "build-"+strings.ToLower(rand.Text()), sandbox.Lifetime{Timeout: life}
	id, err := b.svc.cfg.Sandboxes.CreateForBuild(ctx, spec, b.base)
	if err != nil {
		return sb, err
	}
	opened, err := b.svc.cfg.Exec.Open(ctx, string(id))
	if err != nil {
		return sb, errors.Join(err, b.svc.cfg.Sandboxes.Destroy(context.WithoutCancel(ctx), string(id)))
	}
	return buildSandbox{b.svc, opened}, nil
}

// buildSandbox is a sandbox of a build.
type buildSandbox struct {
	svc     *Service
	sandbox *exec.Handle
}

// Close destroys the sandbox, even if ctx has ended.
func (s buildSandbox) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return s.svc.cfg.Sandboxes.Destroy(ctx, string(s.sandbox.ID()))
}

func (s buildSandbox) Diff(ctx context.Context, w io.Writer) error { return s.sandbox.Diff(ctx, w) }

func (s buildSandbox) ReadFile(ctx context.Context, name string, max int64) ([]byte, error) {
	r, _, err := s.sandbox.Files().Read(ctx, name, driver.ReadOptions{Length: max})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func (s buildSandbox) Exec(ctx context.Context, cmd sandbox.Command, out io.Writer) (exit sandbox.Exit, err error) {
	proc, err := s.sandbox.Exec(ctx, cmd)
	if err != nil {
		return exit, err
	}
	defer proc.Close()
	// Closing the process ends its streams when the build is canceled.
	defer context.AfterFunc(ctx, func() { _ = proc.Close() })()
	both := &oneAtATime{w: out}
	var streams sync.WaitGroup
	for _, r := range []io.Reader{proc.Stdout(), proc.Stderr()} {
		streams.Go(func() { _, _ = io.Copy(both, r) })
	}
	streams.Wait()
	return proc.Wait(ctx)
}

// oneAtATime serialises the writes of two streams.
type oneAtATime struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *oneAtATime) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(b)
}
