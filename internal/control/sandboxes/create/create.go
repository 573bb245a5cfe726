// Package create creates sandboxes: from images, templates and snapshots, and as
// copies of others.
package create

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/prepare"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/templates"
	"github.com/atoll-run/atoll/internal/control/workspaces"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Creator creates and forks sandboxes. The caller fills in the fields.
type Creator struct {
	Core       *core.Core
	Records    *records.Records
	Prepare    *prepare.Preparer
	Remover    *remove.Remover
	Ends       *supervise.Ends
	Mains      *supervise.Mains
	Providers  *providers.Service
	Workspaces *workspaces.Service
	Snapshots  *snapshots.Service
	Policies   *policies.Service
	Profiles   *profiles.Service
	Secrets    *secrets.Service
	Templates  *templates.Service
	Ports      *ports.Service

	underway underway
}

const opCreate = ops.SandboxCreate

// Made is the result of Create.
type Made struct {
	store.Sandbox
	// Image is the configuration of the image. It is empty if Replayed is set.
	Image engine.ImageConfig
	// Replayed means that an earlier request with the same idempotency key created
	// the sandbox.
	Replayed bool
}

// Create creates a sandbox for the caller's tenant. A request with an idempotency
// key that was made before returns the sandbox of the first one. If the first
// attempt failed, the sandbox is created now. If the sandbox was removed since, the
// error is CodeGone.
//
// If another daemon has just closed the node that was chosen, the sandbox is made on
// another one.
func (s *Creator) Create(ctx context.Context, req plan.Request) (made Made, err error) {
	defer core.Name(opCreate, &err)
	if req.Abandon {
		return s.abandon(ctx, req.CreateRequest)
	}
	if who, err := guard.Principal(ctx); err == nil && req.IdempotencyKey != "" && !req.OfSession {
		of, end, err := s.underway.begin(ctx, asked{who.Tenant, req.IdempotencyKey})
		if err != nil {
			return Made{}, err
		}
		defer end()
		ctx = of
	}
	made, err = s.createOnce(ctx, req)
	if !errors.Is(err, store.ErrNodeClosed) {
		return made, err
	}
	s.Core.Report(ctx, s.Providers.ReloadNodes(ctx))
	if req.Spec.Provider != "" {
		return made, err
	}
	return s.createOnce(ctx, req)
}

// createOnce plans a sandbox, records it, makes it with the provider, and records
// the outcome.
func (s *Creator) createOnce(ctx context.Context, req plan.Request) (_ Made, err error) {
	ctx, end := span.Start(ctx, "control", string(opCreate), "")
	defer func() { end(err) }()
	defer core.Name(opCreate, &err)
	who, action, err := s.Core.Admit(ctx, opCreate, guard.Subject{Name: req.Spec.Name, Subject: req.Spec.Name},
		func(who key.Principal) error { return guard.AllowSpec(who, &req.Spec) })
	if err != nil {
		return Made{}, err
	}
	p, err := s.draft(ctx, who.Tenant, action, req)
	if err != nil {
		return Made{}, err
	}
	be, p, chosen, err := s.place(ctx, who, p)
	if err != nil {
		return Made{}, err
	}
	defer s.Records.Inflight.Begin(p.Spec.ID)()
	action.Sandbox, action.Name, action.Subject = p.Spec.ID, p.Spec.Name, p.Spec.Name
	if err := s.affords(ctx, be, &p, action); err != nil {
		return Made{}, err
	}
	leave, err := s.Prepare.Admit(ctx, be, who.Tenant)
	if err != nil {
		return Made{}, err
	}
	defer leave()
	if chosen != "" && s.Providers.OnNode(be.Name) {
		fact := audit.Action{Tenant: who.Tenant, Actor: action.Actor, Op: ops.NodePlace, Sandbox: p.Spec.ID, Name: p.Spec.Name, Subject: be.Name}
		s.Core.Report(ctx, s.Core.Audit.FactLater(fact, eventlog.NodePlaced, func(e *eventlog.Event) { e.Policy = chosen }))
	}
	once := store.Create{IdempotencyKey: req.IdempotencyKey, Request: req.Raw, OfSession: req.OfSession, Retry: neverMade}
	earlier, intent, err := s.record(ctx, be, action, []wanted{{Plan: &p, once: once, replaces: req.Replaces}})
	switch {
	case err != nil:
		return Made{}, err
	case earlier != nil:
		return s.replay(ctx, earlier[0])
	}
	sb, image, err := s.make(ctx, be, &p, chosen, intent)
	if err == nil && sb.Spec.Main != nil {
		if err = s.Mains.Start(ctx, &sb, image); err != nil {
			s.Core.Report(ctx, records.IgnoreGone(s.Remover.DestroyAs(guard.WithOwner(context.WithoutCancel(ctx), who.Tenant), string(sb.ID), ops.SandboxDestroy, records.ReasonUnmade)))
		}
	}
	if t := p.Template; err == nil && t != nil && t.Start != "" && (p.Origin == "" || sb.Reason != "") {
		err = s.Templates.StartCold(ctx, sb.ID, t)
	}
	return Made{Sandbox: sb, Image: image}, err
}

// draft finds the objects that a request names, and plans it as far as no provider is
// needed for that.
func (s *Creator) draft(ctx context.Context, tenant string, a audit.Action, req plan.Request) (p plan.Plan, err error) {
	ask := plan.Ask{Request: req, Tenant: tenant}
	if ask.Spec.Network, err = s.Secrets.SealProxy(tenant, ask.Spec.Network); err != nil {
		return p, err
	}
	if ask.Images, err = s.Policies.AskedImage(ctx, tenant, &ask.Spec); err != nil {
		return p, err
	}
	if ask.Template, err = s.Templates.Source(ctx, tenant, &ask.Spec); err != nil {
		return p, err
	}
	if ask.Spec.Snapshot != "" {
		if ask.Snapshot, err = s.Snapshots.Source(ctx, tenant, ask.Spec.Snapshot); err != nil {
			return p, err
		}
	}
	if req.Base != nil {
		ask.Images = req.Base
	}
	if ask.Policies, err = s.Policies.Known(ctx, tenant, &ask.Spec, ask.Images); err != nil {
		return p, err
	}
	p, err = plan.Draft(ask)
	return p, s.Policies.Refused(ctx, a, err)
}

// place chooses the provider of a plan, and says why if that was not asked for. It
// returns the plan for that provider.
func (s *Creator) place(ctx context.Context, who key.Principal, p plan.Plan) (be *providers.Backend, _ plan.Plan, chosen string, err error) {
	lent := p.Spec.Provider == "" && s.Providers.Lends(ctx, p.Tenant, p.Spec.Image) // also so that a node which has it is chosen
	if p.Bound || p.Template != nil && !lent {
		s.Providers.KeepHere(&p.Spec)
	}
	if be, chosen, err = s.Providers.Select(ctx, who, &p.Spec); err != nil {
		return nil, p, "", err
	}
	p.Spec.Provider = be.Name
	p, err = be.Engine.Fit(ctx, p)
	return be, p, chosen, err
}

// affords refuses a plan because of the signatures of its image, of limits that
// are required and would not be enforced, and of its workspaces. It creates new
// workspaces.
func (s *Creator) affords(ctx context.Context, be *providers.Backend, p *plan.Plan, a audit.Action) error {
	if p.Unfetched {
		signed, err := s.Policies.PermitSigned(ctx, a, *p)
		if err != nil {
			return err
		}
		*p = signed
	}
	if len(p.Limits) > 0 {
		if err := s.Prepare.Demanded(ctx, be, p.Tenant, p.Caps.Resources, p.Limits); err != nil {
			return err
		}
	}
	return s.Workspaces.Ensure(ctx, p.Spec.Workspaces)
}

// replay returns the sandbox that an earlier request created.
func (s *Creator) replay(ctx context.Context, sb store.Sandbox) (Made, error) {
	if err := s.Records.Inflight.Wait(ctx, sb.ID); err != nil {
		return Made{}, err
	}
	sb, err := s.Records.Record(ctx, sb.Tenant, sb.ID)
	if err == nil && sb.State == sandbox.Gone {
		err = madeEarlier(&sb)
	}
	return Made{Sandbox: sb, Replayed: true}, err
}

// Isolation returns the weakest isolation that a sandbox of a tenant may have, by
// its Spec and the policies. Empty: any.
func (s *Creator) Isolation(tenant string, spec *sandbox.Spec) sandbox.Isolation {
	return spec.Isolation.Stronger(s.Policies.Isolation(tenant, spec.Labels))
}
