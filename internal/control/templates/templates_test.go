package templates

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// saved are snapshots that there are, and notes those that are removed.
type saved struct {
	there   []string
	removed []string
}

func (s *saved) CreateSnapshot(context.Context, string, durable.SnapshotRequest) (durable.Snapshot, error) {
	return durable.Snapshot{}, errors.New("no sandbox runs here")
}

func (s *saved) Find(_ context.Context, tenant, ref string) (out store.Snapshot, err error) {
	if !slices.Contains(s.there, ref) {
		return out, &sandbox.Error{Code: sandbox.CodeNotFound}
	}
	out.ID, out.Tenant = ref, tenant
	return out, nil
}

func (s *saved) Source(ctx context.Context, tenant, ref string) (*plan.Snapshot, error) {
	found, err := s.Find(ctx, tenant, ref)
	return &plan.Snapshot{ID: found.ID, Provider: "fake"}, err
}

func (*saved) FetchImage(context.Context, string, string) error { return nil }
func (*saved) TemplatesChanged(string)                          {}

func (s *saved) Remove(_ context.Context, of *store.Snapshot) error {
	s.removed = append(s.removed, of.ID)
	return nil
}

// noSandboxes are sandboxes of which none can be made.
type noSandboxes struct{ asked int }

func (n *noSandboxes) CreateForBuild(context.Context, sandbox.Spec, []string) (sandbox.ID, error) {
	n.asked++
	return "", &sandbox.Error{Code: sandbox.CodeExhausted, Message: "no sandbox can be made"}
}
func (*noSandboxes) Destroy(context.Context, string) error { return nil }

func open(t *testing.T) (*Service, *saved) {
	t.Helper()
	c, s := coretest.Open(t), &saved{there: []string{"sn-1", "sn-2"}}
	p := &coretest.Provider{Can: driver.Facts{Provider: "fake", Isolation: sandbox.IsolationKernel, Capabilities: driver.Capabilities{Memory: true}}}
	return New(c, Config{
		Providers: providers.New(c, providers.Config{Default: providers.Opened{Name: "fake", Engine: engine.Config{Provider: p}}}), Snapshots: s, Sandboxes: &noSandboxes{},
	}), s
}

// set records a template of a tenant by NAME:TAG.
func set(t *testing.T, s *Service, tenant, ref string, more store.Template) store.Template {
	t.Helper()
	more.Tenant = tenant
	more.Name, more.Tag, _ = strings.Cut(ref, ":")
	coretest.OK(t, s.setTemplate(t.Context(), &more))
	return more
}

func publish(t *testing.T, c *core.Core, tenant, name string) {
	t.Helper()
	_, err := store.Write(t.Context(), c.Store, func(tx *store.Tx) ([]store.Template, error) {
		return tx.Templates().Publish(t.Context(), tenant, name, true)
	})
	coretest.OK(t, err)
}

// A tenant sees its own templates and the public ones of others, of which it does
// not see what they were made from.
func TestTemplate(t *testing.T) {
	s, _ := open(t)
	set(t, s, coretest.Acme, "base:latest", store.Template{Template: durable.Template{Image: "sha256:aa", Base: "sha256:bb", Start: "serve", Snapshot: "sn-1"}})
	set(t, s, coretest.Acme, "secret:latest", store.Template{})
	publish(t, s.Core, coretest.Acme, "base")
	for _, tt := range []struct {
		tenant, ref string
		code        sandbox.Code
		name        string
		all         bool // also what it was made from
	}{
		{coretest.Acme, "base", "", "base", true},
		{coretest.Acme, "acme/base:latest", "", "base", true},
		{coretest.Acme, "base:other", sandbox.CodeNotFound, "", false},
		{coretest.Rival, "acme/base", "", "acme/base", false},
		{coretest.Rival, "acme/secret", sandbox.CodeNotFound, "", false},
		{coretest.Rival, "base", sandbox.CodeNotFound, "", false},
		{coretest.Rival, "acme/../base", sandbox.CodeInvalid, "", false},
	} {
		got, err := s.Template(coretest.As(t, tt.tenant, key.Read), tt.ref)
		if sandbox.CodeOf(err) != tt.code {
			t.Errorf("%s of %s: the error is %v, want the code %q", tt.ref, tt.tenant, err, tt.code)
			continue
		}
		if all := got.Base != "" && got.Start != "" && got.Snapshot != ""; got.Name != tt.name || all != tt.all || err == nil && got.Image != "sha256:aa" {
			t.Errorf("%s of %s is %+v, want %s, and what it was made from: %v", tt.ref, tt.tenant, got, tt.name, tt.all)
		}
	}
	_, err := s.Template(coretest.As(t, coretest.Acme, key.Read), "base:other")
	if known, ok := errors.AsType[*sandbox.Error](err); !ok || !strings.Contains(known.Hint, "latest") {
		t.Errorf("the error %v does not name the tags that there are", err)
	}
}

// The snapshot of a template is removed when no name refers to it, and not before.
func TestSnapshotsOfReplacedTemplates(t *testing.T) {
	one, two := store.Template{Template: durable.Template{Snapshot: "sn-1"}}, store.Template{Template: durable.Template{Snapshot: "sn-2"}}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, s *Service, ctx context.Context) error
		want []string
	}{
		{"replaced by another", func(t *testing.T, s *Service, _ context.Context) error {
			set(t, s, coretest.Acme, "base:latest", two)
			return nil
		}, []string{"sn-1"}},
		{"replaced by one with the same", func(t *testing.T, s *Service, _ context.Context) error {
			set(t, s, coretest.Acme, "base:latest", one)
			return nil
		}, nil},
		{"removed", func(_ *testing.T, s *Service, ctx context.Context) error { return s.RemoveTemplate(ctx, "base") }, []string{"sn-1"}},
		{"removed, with another name", func(_ *testing.T, s *Service, ctx context.Context) error {
			_, err := s.TagTemplate(ctx, "base", "base:v1")
			return core.FirstError(err, s.RemoveTemplate(ctx, "base"))
		}, nil},
		{"removed, and then its other name", func(_ *testing.T, s *Service, ctx context.Context) error {
			_, err := s.TagTemplate(ctx, "base", "base:v1")
			return core.FirstError(err, s.RemoveTemplate(ctx, "base"), s.RemoveTemplate(ctx, "base:v1"))
		}, []string{"sn-1"}},
		{"its name moved to another", func(t *testing.T, s *Service, ctx context.Context) error {
			set(t, s, coretest.Acme, "new:latest", two)
			_, err := s.TagTemplate(ctx, "new", "base:latest")
			return err
		}, []string{"sn-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, snapshots := open(t)
			set(t, s, coretest.Acme, "base:latest", one)
			coretest.OK(t, tt.do(t, s, coretest.As(t, coretest.Acme, key.Write)))
			if !slices.Equal(snapshots.removed, tt.want) {
				t.Errorf("the snapshots %v were removed, want %v", snapshots.removed, tt.want)
			}
		})
	}
}

// Nobody changes a template of another tenant, also a public one.
func TestForeignTemplates(t *testing.T) {
	s, _ := open(t)
	set(t, s, coretest.Acme, "base:latest", store.Template{})
	publish(t, s.Core, coretest.Acme, "base")
	ctx := coretest.As(t, coretest.Rival, key.Admin)
	for name, do := range map[string]func() error{
		"remove":    func() error { return s.RemoveTemplate(ctx, "acme/base") },
		"tag":       func() error { _, err := s.TagTemplate(ctx, "acme/base", "mine"); return err },
		"tag as":    func() error { _, err := s.TagTemplate(ctx, "mine", "acme/base"); return err },
		"publish":   func() error { _, err := s.PublishTemplate(ctx, "acme/base", true); return err },
		"unpublish": func() error { _, err := s.PublishTemplate(ctx, "acme/base", false); return err },
	} {
		if err := do(); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("%s: the error is %v, want not_found", name, err)
		}
	}
}

// All tags of a name are public, or none: one that may not be keeps the others back.
func TestPublish(t *testing.T) {
	s, _ := open(t)
	ctx := coretest.As(t, coretest.Acme, key.Admin)
	set(t, s, coretest.Acme, "base:latest", store.Template{})
	set(t, s, coretest.Acme, "base:v1", store.Template{})
	got, err := s.PublishTemplate(ctx, "base", true)
	coretest.OK(t, err)
	if got.Name != "acme/base" || !slices.Equal(got.Tags, []string{"latest", "v1"}) {
		t.Errorf("%+v is public, want acme/base with latest and v1", got)
	}
	_, err = s.PublishTemplate(ctx, "base:v1", true)
	coretest.WantCode(t, err, sandbox.CodeInvalid)
	_, err = s.PublishTemplate(ctx, "none", true)
	coretest.WantCode(t, err, sandbox.CodeNotFound)
	set(t, s, coretest.Acme, "login:latest", store.Template{Withheld: store.WithheldLogin})
	_, err = s.PublishTemplate(ctx, "login", true)
	coretest.WantCode(t, err, sandbox.CodeDenied)
}

// A template with a start command takes the snapshot of an equal one, if that is
// there, and starts nothing.
func TestRemember(t *testing.T) {
	equal := durable.Template{Image: "sha256:aa", Start: "serve", CPUs: 1, Snapshot: "sn-1"}
	other := equal
	other.CPUs = 2
	lost := equal
	lost.Snapshot = "sn-9"
	for _, tt := range []struct {
		name    string
		there   durable.Template
		req     template.NamedRequest
		want    string
		started int
	}{
		{"an equal one", equal, template.NamedRequest{}, "sn-1", 0},
		{"an equal one, but nothing of before is wanted", equal, template.NamedRequest{NoCache: true}, "", 1},
		{"one with other limits", other, template.NamedRequest{}, "", 1},
		{"an equal one whose snapshot is gone", lost, template.NamedRequest{}, "", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := open(t)
			set(t, s, coretest.Acme, "first:latest", store.Template{Template: tt.there})
			made := store.Template{Tenant: coretest.Acme, Template: durable.Template{Image: "sha256:aa", Start: "serve", CPUs: 1}}
			s.cfg.Policies = free{}
			err := s.remember(t.Context(), &made, tt.req)
			if started := s.cfg.Sandboxes.(*noSandboxes).asked; started != tt.started || (err != nil) != (tt.started > 0) || made.Snapshot != tt.want {
				t.Errorf("it has the snapshot %q after %d starts (%v), want %q after %d", made.Snapshot, started, err, tt.want, tt.started)
			}
		})
	}
}

// Which template an image names, and what it gives.
func TestSource(t *testing.T) {
	s, _ := open(t)
	set(t, s, coretest.Acme, "warm:latest", store.Template{Template: durable.Template{Image: "sha256:aa", Start: "serve", Snapshot: "sn-1"}, Ready: "true"})
	set(t, s, coretest.Acme, "cold:latest", store.Template{Template: durable.Template{Image: "sha256:bb", Start: "serve", Snapshot: "sn-9"}})
	for image, want := range map[string]string{"debian:12": "", "template:warm": "sn-1", "template:cold": ""} {
		got, err := s.Source(t.Context(), coretest.Acme, &sandbox.Spec{Image: image})
		coretest.OK(t, err)
		if (got != nil) != strings.HasPrefix(image, template.Prefix) {
			t.Fatalf("%s names the template %+v", image, got)
		}
		if got == nil {
			continue
		}
		id := ""
		if got.Saved != nil {
			id = got.Saved.ID
		}
		if id != want || (got.Gives == sandbox.IsolationKernel) != (want != "") {
			t.Errorf("%s is made from %q, which gives %q; want %q", image, id, got.Gives, want)
		}
	}
	_, err := s.Source(t.Context(), coretest.Rival, &sandbox.Spec{Image: "template:acme/warm"})
	coretest.WantCode(t, err, sandbox.CodeNotFound)
}
