package create

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// announce records the sandbox and the attempt to create it in one transaction.
// A nil intent means that an earlier request created the sandbox.
func (s *Creator) announce(ctx context.Context, be *providers.Backend, p *plan.Plan, req *sandbox.CreateRequest, more *extras, a audit.Action) (box store.Sandbox, intent *audit.Intent, err error) {
	bound := be.Bound(p.Spec)
	values, err := s.Secrets.Reveal(ctx, p.Tenant, bound.Secrets)
	if err != nil {
		return box, nil, err
	}
	defer values.Clear()
	once := store.Create{IdempotencyKey: req.IdempotencyKey, Request: req.Raw, OfSession: more.ofSession, Retry: neverMade}
	err = s.Core.Store.Update(ctx, func(tx *store.Tx) error {
		intent = nil
		if err := s.takes(ctx, tx, be.Name); err != nil {
			return err
		}
		b := s.recordOf(p, be.Binding, be.Isolation(ctx), tx.Now())
		if p.Timeout > p.Spec.Lifetime.Timeout {
			b.Expires = tx.Now().Add(p.Timeout)
		}
		var replayed bool
		var err error
		if box, replayed, err = tx.Sandboxes().Create(ctx, p.Tenant, b, once); err != nil || replayed {
			return err
		}
		if p.Hidden, err = s.bind(ctx, tx, p.Tenant, &bound, values); err != nil {
			return err
		}
		if err := s.Workspaces.Claim(ctx, tx, p.Tenant, &p.Spec, more.replaces); err != nil {
			return err
		}
		intent, err = s.Core.Audit.BeginTx(ctx, tx, a)
		return err
	})
	return box, intent, err
}

// recordOf returns the record of a planned sandbox.
func (s *Creator) recordOf(p *plan.Plan, binding string, gives sandbox.Isolation, now time.Time) store.Sandbox {
	b := store.Sandbox{
		Summary: store.Summary{
			Sandbox: sandbox.Sandbox{
				ID: p.Spec.ID, Name: p.Spec.Name, Provider: p.Spec.Provider, Isolation: gives, Node: s.Core.Node, Image: p.Images[0],
				Resources: p.Spec.Resources, Limits: p.Limits, Labels: p.Spec.Labels, Origin: p.Origin,
			},
			Binding: binding,
		},
		Spec: p.Spec,
	}
	records.SetLifetime(&b, p.Spec.Lifetime, now)
	return b
}

// neverMade reports whether the creation of a sandbox failed, so that no caller
// ever used it.
func neverMade(b *store.Sandbox) bool {
	return b.State == sandbox.Gone && (b.Reason == records.ReasonUnmade || b.Reason == records.ReasonUnfinished)
}

// madeEarlier is the error for a repeated request whose sandbox is gone.
func madeEarlier(b *store.Sandbox) error {
	return &sandbox.Error{
		Code: sandbox.CodeGone, Subject: string(b.ID), Message: "the sandbox that this request created no longer exists: " + b.Reason,
		Hint: "use a new idempotency key to create another",
	}
}

// make creates a recorded sandbox with the provider, and records the outcome.
// chosen is why it is not the default provider, if it was not asked for.
func (s *Creator) make(ctx context.Context, be *providers.Backend, p *plan.Plan, chosen string, intent *audit.Intent) (box store.Sandbox, image control.ImageConfig, err error) {
	if err := s.Core.Fault("create.recorded"); err != nil {
		return box, image, err
	}
	published, makeErr := s.Ports.Reserve(p.Tenant, p.Spec.ID, p.Spec.Name, p.Spec.Ports)
	var made *control.Sandbox
	var how driver.Restored
	if makeErr == nil {
		made, how, makeErr = s.bringUp(ctx, be, p)
	}
	if err := s.Core.Fault("create.empty"); err != nil {
		return box, image, err
	}
	if makeErr == nil {
		if err := s.Workspaces.Load(ctx, made); err != nil {
			makeErr = errors.Join(err, made.Teardown(ctx))
		}
	}
	if err := s.Core.Fault("create.made"); err != nil {
		return box, image, err
	}
	// The caller may have gone; the outcome must be recorded anyway.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), records.FinalizeTimeout)
	defer cancel()
	state, reason := sandbox.Running, cmp.Or(records.ColdReason(how), chosen)
	if makeErr != nil {
		state, reason = sandbox.Gone, records.ReasonUnmade
	}
	box, err = s.Records.Finalize(late, p.Tenant, p.Spec.ID, intent, audit.Outcome{Err: makeErr}, func(b *store.Sandbox) {
		b.State, b.Reason = state, reason
		if makeErr == nil {
			// Record the image actually used: its name may later refer to another one.
			b.Spec.Image, b.Spec.Ports = made.Image().Ref, published
		}
	}, nil)
	switch {
	case makeErr != nil:
		s.Records.Discard(late, &store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: p.Spec.ID}}})
		s.Core.Report(ctx, errors.Join(err, s.Workspaces.DetachNow(ctx, p.Spec.ID, p.Spec.Name)))
		return box, image, makeErr
	case err != nil:
		// The sandbox is running, but its record says "creating". The next
		// reconciliation fixes that.
		return box, image, err
	}
	s.Ends.Follow(p.Tenant, made)
	s.Records.LifetimeChanged.Send()
	return box, made.Image(), s.Core.Fault("create.done")
}

// bringUp creates a sandbox from its image or from its snapshot. Before
// that, it stores what must not be in the record elsewhere. It does not load
// copies of workspaces.
func (s *Creator) bringUp(ctx context.Context, be *providers.Backend, p *plan.Plan) (*control.Sandbox, driver.Restored, error) {
	if err := s.Snapshots.PutEnvironment(p.Spec.ID, p.Spec.Env); err != nil {
		return nil, driver.Restored{}, err
	}
	mounted, err := s.Workspaces.Mount(ctx, *p, be.Facts)
	if err != nil {
		return nil, driver.Restored{}, err
	}
	if p.Origin != "" {
		return s.Snapshots.Restore(ctx, be, mounted, p.Origin)
	}
	made, err := be.Control.Create(ctx, mounted)
	return made, driver.Restored{}, err
}

// bind stores the references of a new sandbox to its profile and secrets, in
// the transaction that records the sandbox. It returns the environment
// variables that contain secrets.
func (s *Creator) bind(ctx context.Context, tx *store.Tx, tenant string, spec *sandbox.Spec, values secrets.Revealed) (map[string]string, error) {
	env, swaps, err := s.Secrets.Bind(ctx, tx, tenant, spec, values)
	if err != nil {
		return nil, err
	}
	return env, s.Profiles.Bind(ctx, tx, tenant, spec, swaps)
}
