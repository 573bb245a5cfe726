// Package templates builds and stores templates, including memory snapshots for
// templates with a start command.
package templates

import (
	"context"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Builder builds images in sandboxes.
type Builder interface {
	Build(ctx context.Context, sandboxes template.Sandboxes, req template.Request) (*template.Result, error)
	// Prune removes build steps that no build of the tenant has used since the
	// time since, and images of the tenant's builds whose digests are not in keep.
	// It returns the number of bytes freed.
	Prune(ctx context.Context, tenant string, since time.Time, keep []string) (int64, error)
}

// Sandboxes creates and removes build sandboxes for the caller's tenant.
type Sandboxes interface {
	// CreateForBuild creates a sandbox from a local image. It does not outlive
	// this process. Policies are checked against the image names in base.
	CreateForBuild(ctx context.Context, spec sandbox.Spec, base []string) (sandbox.ID, error)
	Destroy(ctx context.Context, ref string) error
}

// Exec accesses running sandboxes. Package exec implements it.
type Exec interface {
	Open(ctx context.Context, ref string) (*exec.Handle, error)
}

// Snapshots stores memory snapshots. Package snapshots implements it.
type Snapshots interface {
	CreateSnapshot(ctx context.Context, ref string, req durable.SnapshotRequest) (durable.Snapshot, error)
	Find(ctx context.Context, tenant, ref string) (store.Snapshot, error)
	Source(ctx context.Context, tenant, ref string) (*plan.Snapshot, error)
	Remove(ctx context.Context, s *store.Snapshot) error
	// FetchImage gets the image of a template that the tenant may use, or one that
	// was imported, if this machine lacks it and another daemon has saved it.
	FetchImage(ctx context.Context, tenant, ref string) error
	// TemplatesChanged says that saved images have to be looked at.
	TemplatesChanged(tenant string)
}

// Policies decides what may be built. Package policies implements it.
type Policies interface {
	AskedImage(ctx context.Context, tenant string, spec *sandbox.Spec) ([]string, error)
	FetchSigned(ctx context.Context, a audit.Action, spec *sandbox.Spec, images []string, req engine.ImageRequest) ([]string, error)
	Permit(ctx context.Context, a audit.Action, spec *sandbox.Spec, images []string, fields ...policyset.Field) error
	Set() *policyset.Set
}

// Config configures a Service.
type Config struct {
	Providers *providers.Service
	Sandboxes Sandboxes
	Exec      Exec
	Snapshots Snapshots
	Policies  Policies
	// Builder builds images. Nil: templates cannot be built.
	Builder Builder
	// Scratch is a directory for build files that no other user can read.
	Scratch string
}

// Service manages the templates of all tenants. It is safe for concurrent use.
type Service struct {
	*core.Core
	cfg Config
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service { return &Service{Core: c, cfg: cfg} }

// imageOf returns the image that ref names and, if it names a template, that
// template.
func (svc *Service) imageOf(ctx context.Context, tenant, ref string) (image string, t store.Template, err error) {
	name, ok := strings.CutPrefix(ref, template.Prefix)
	if !ok {
		return ref, t, nil
	}
	t, err = svc.find(ctx, tenant, name)
	return t.Image, t, err
}

// Source returns the template that the image of a Spec names. Nil: it names none.
func (svc *Service) Source(ctx context.Context, tenant string, spec *sandbox.Spec) (*plan.Template, error) {
	_, t, err := svc.imageOf(ctx, tenant, spec.Image)
	if err != nil || t.Name == "" {
		return nil, err
	}
	out := &plan.Template{Template: t.Template, Ready: t.Ready, Saved: svc.saved(ctx, &t)}
	if out.Saved != nil {
		if be, err := svc.cfg.Providers.Backend(ctx, out.Saved.Provider); err == nil {
			out.Gives = be.Isolation(ctx)
		}
	}
	return out, nil
}

// find returns the template that a tenant means by [TENANT/]NAME[:TAG]: its own,
// or a public one of another tenant. Nothing else reads templates of other
// tenants.
func (svc *Service) find(ctx context.Context, tenant, ref string) (store.Template, error) {
	owner, name, tag, err := template.ParseRef(tenant, ref)
	if err != nil {
		return store.Template{}, err
	}
	t, err := store.Read(ctx, svc.Store, func(tx *store.Tx) (store.Template, error) {
		if owner != tenant {
			return tx.Templates().GetPublic(ctx, owner, name, tag)
		}
		return tx.Templates().Get(ctx, owner, name, tag)
	})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		hint := "of another tenant, only public templates can be used; list your own with: atoll template ls"
		if owner == tenant {
			hint = svc.others(ctx, tenant, name)
		}
		err = core.Hinted(err, hint)
	}
	return t, err
}

// ownRef splits a reference to one of the tenant's own templates. Other tenants'
// cannot be changed, whether they exist or not.
func ownRef(tenant, ref string) (name, tag string, err error) {
	owner, name, tag, err := template.ParseRef(tenant, ref)
	if err == nil && owner != tenant {
		err = &sandbox.Error{
			Code: sandbox.CodeNotFound, Subject: owner + "/" + name + ":" + tag, Message: "no such template of your tenant",
			Hint: "only its tenant can change a template; use a public one as it is, or build your own with: FROM template:TENANT/NAME",
		}
	}
	return name, tag, err
}

// shownTo returns what a tenant may see of a template. Of another tenant's it
// may not see what the template was made from.
func shownTo(tenant string, t *store.Template) durable.Template {
	if t.Tenant == tenant {
		return t.Template
	}
	return durable.Template{
		Name: t.Tenant + "/" + t.Name, Tag: t.Tag, Image: t.Image, Size: t.Size, Created: t.Created, CPUs: t.CPUs, Memory: t.Memory, Public: t.Public,
	}
}

// others returns a hint with the tags of a template, or how to list templates.
func (svc *Service) others(ctx context.Context, tenant, name string) string {
	all, err := store.Read(ctx, svc.Store, func(tx *store.Tx) ([]store.Template, error) { return tx.Templates().List(ctx, tenant) })
	var tags []string
	for i := range all {
		if all[i].Name == name {
			tags = append(tags, all[i].Tag)
		}
	}
	if err != nil || len(tags) == 0 {
		return "list templates with: atoll template ls"
	}
	const most = 10
	if len(tags) > most {
		tags = append(tags[:most], "…")
	}
	return "the template " + name + " has the tags: " + strings.Join(tags, ", ")
}

// Templates lists the templates of the caller's tenant.
func (svc *Service) Templates(ctx context.Context) ([]durable.Template, error) {
	all, err := core.Read(ctx, svc.Core, ops.TemplateList, "", func(tx *store.Tx, tenant string) ([]store.Template, error) { return tx.Templates().List(ctx, tenant) })
	out := make([]durable.Template, len(all))
	for i, t := range all {
		out[i] = t.Template
	}
	return out, err
}

// Template returns a template by [TENANT/]NAME[:TAG]: of the caller's tenant, or
// a public one of another.
func (svc *Service) Template(ctx context.Context, ref string) (durable.Template, error) {
	const op = ops.TemplateGet
	who, err := svc.Look(ctx, op, ref)
	if err != nil {
		return durable.Template{}, err
	}
	t, err := svc.find(ctx, who.Tenant, ref)
	if err != nil {
		return durable.Template{}, core.Named(op, err)
	}
	return shownTo(who.Tenant, &t), nil
}

// TagTemplate adds a name to a template of the caller's tenant. A name that is in
// use is moved.
func (svc *Service) TagTemplate(ctx context.Context, ref, as string) (durable.Template, error) {
	const op = ops.TemplateTag
	who, err := guard.Principal(ctx)
	if err != nil {
		return durable.Template{}, err
	}
	var t store.Template
	err = svc.Do(ctx, op, guard.Subject{Subject: as}, func(ctx context.Context) error {
		name, tag, err := ownRef(who.Tenant, as)
		if err == nil {
			_, _, err = ownRef(who.Tenant, ref)
		}
		if err != nil {
			return err
		}
		if t, err = svc.find(ctx, who.Tenant, ref); err != nil {
			return err
		}
		t.Name, t.Tag = name, tag
		return svc.setTemplate(ctx, &t)
	})
	return t.Template, err
}

// RemoveTemplate removes the name of a template. Its sandboxes are not
// affected.
func (svc *Service) RemoveTemplate(ctx context.Context, ref string) error {
	const op = ops.TemplateRemove
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return svc.Do(ctx, op, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		name, tag, err := ownRef(who.Tenant, ref)
		if err != nil {
			return err
		}
		return svc.replaceTemplate(ctx, who.Tenant, name, tag, func(tx *store.Tx) error { return tx.Templates().Remove(ctx, who.Tenant, name, tag) })
	})
}

// PublishTemplate lets other tenants use all tags of a template by the name
// TENANT/NAME, or ends that. Their sandboxes are not affected.
func (svc *Service) PublishTemplate(ctx context.Context, ref string, public bool) (durable.Visibility, error) {
	op := ops.TemplateUnpublish
	if public {
		op = ops.TemplatePublish
	}
	who, err := guard.Principal(ctx)
	if err != nil {
		return durable.Visibility{}, err
	}
	out := durable.Visibility{Tags: []string{}, Public: public}
	err = svc.Do(ctx, op, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		name, _, err := ownRef(who.Tenant, ref)
		if err == nil && strings.Contains(ref, ":") {
			err = &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "name", Message: "has a tag, but all tags of a name are public or none is", Hint: "leave the tag out"}
		}
		if err != nil {
			return err
		}
		all, err := store.Write(ctx, svc.Store, func(tx *store.Tx) ([]store.Template, error) {
			return tx.Templates().Publish(ctx, who.Tenant, name, public)
		})
		out.Name = who.Tenant + "/" + name
		for i := range all {
			out.Tags = append(out.Tags, all[i].Tag)
		}
		return core.Hinted(err, "list templates with: atoll template ls")
	})
	return out, err
}

// PruneTemplates removes build data of the caller's tenant that was not used
// for the given time. Templates are kept.
func (svc *Service) PruneTemplates(ctx context.Context, unused time.Duration) (freed int64, err error) {
	const op = ops.TemplatePrune
	who, err := guard.Principal(ctx)
	if err != nil {
		return 0, err
	}
	err = svc.Do(ctx, op, guard.Subject{}, func(ctx context.Context) error {
		if svc.cfg.Builder == nil {
			return nil
		}
		all, err := store.Read(ctx, svc.Store, func(tx *store.Tx) ([]store.Template, error) { return tx.Templates().List(ctx, who.Tenant) })
		if err != nil {
			return err
		}
		keep := make([]string, len(all))
		for i, t := range all {
			keep[i] = t.Image
		}
		freed, err = svc.cfg.Builder.Prune(ctx, who.Tenant, svc.Store.Now().Add(-unused), keep)
		return err
	})
	return freed, err
}
