package create

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// wanted is a sandbox before it is recorded.
type wanted struct {
	*plan.Plan
	once     store.Create
	replaces sandbox.ID // see plan.Request
	step     string     // of its record
}

// record records new sandboxes of one provider and the attempt to create them in one
// transaction, so that all of them fit into the quota. It sets Hidden in their plans.
// If an earlier request with the same idempotency key created them, it returns those.
func (s *Creator) record(ctx context.Context, be *providers.Backend, a audit.Action, all []wanted) (earlier []store.Sandbox, intent *audit.Intent, err error) {
	values, err := s.Secrets.Reveal(ctx, a.Tenant, be.Bound(all[0].Spec).Secrets)
	if err != nil {
		return nil, nil, err
	}
	defer values.Clear()
	gives := be.Isolation(ctx)
	err = s.Core.Store.Update(ctx, func(tx *store.Tx) error {
		earlier, intent = nil, nil
		if s.Providers.OnNode(be.Name) { // what this daemon remembers of the node may be out of date
			if err := tx.Operator().NodeTakes(ctx, be.Name); err != nil {
				return err
			}
		}
		for _, w := range all {
			b, replayed, err := tx.Sandboxes().Create(ctx, a.Tenant, s.recordOf(&w, be.Binding, gives, tx.Now()), w.once)
			switch {
			case err != nil:
				return err
			case replayed:
				earlier = append(earlier, b)
				continue
			}
			bound := be.Bound(w.Spec)
			env, swaps, err := s.Secrets.Bind(ctx, tx, a.Tenant, &bound, values)
			if err != nil {
				return err
			}
			w.Hidden = env
			if err := core.FirstError(s.Profiles.Bind(ctx, tx, a.Tenant, &bound, swaps), s.Workspaces.Claim(ctx, tx, a.Tenant, &w.Spec, w.replaces)); err != nil {
				return err
			}
		}
		if earlier != nil {
			return allThere(earlier, len(all))
		}
		var err error
		intent, err = s.Core.Audit.BeginTx(ctx, tx, a)
		return err
	})
	return earlier, intent, err
}

// recordOf returns the record of a planned sandbox.
func (s *Creator) recordOf(w *wanted, binding string, gives sandbox.Isolation, now time.Time) store.Sandbox {
	b := store.Sandbox{
		Summary: store.Summary{
			Sandbox: sandbox.Sandbox{
				ID: w.Spec.ID, Name: w.Spec.Name, Provider: w.Spec.Provider, Isolation: gives, Node: s.Core.Node, Image: w.Images[0],
				Resources: w.Spec.Resources, Limits: w.Limits, Labels: w.Spec.Labels, Origin: w.Origin,
			},
			Binding: binding,
		},
		Spec: w.Spec, Rest: store.Rest{Step: w.step},
	}
	records.SetLifetime(&b, w.Spec.Lifetime, now)
	if w.Timeout > w.Spec.Lifetime.Timeout {
		b.Expires = now.Add(w.Timeout)
	}
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
func (s *Creator) make(ctx context.Context, be *providers.Backend, p *plan.Plan, chosen string, intent *audit.Intent) (sb store.Sandbox, image engine.ImageConfig, err error) {
	if err := s.Core.Fault("create.recorded"); err != nil {
		return sb, image, err
	}
	published, makeErr := s.Ports.Reserve(p.Tenant, p.Spec.ID, p.Spec.Name, p.Spec.Ports)
	var made *engine.Sandbox
	var how driver.Restored
	if makeErr == nil {
		made, how, makeErr = s.bringUp(ctx, be, p, nil)
	}
	if err := s.Core.Fault("create.empty"); err != nil {
		return sb, image, err
	}
	if makeErr == nil {
		if err := s.Workspaces.Load(ctx, made); err != nil {
			makeErr = errors.Join(err, made.Teardown(ctx))
		}
	}
	if err := s.Core.Fault("create.made"); err != nil {
		return sb, image, err
	}
	// The caller may have gone; the outcome must be recorded anyway.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), records.FinalizeTimeout)
	defer cancel()
	state, reason := sandbox.Running, cmp.Or(records.ColdReason(how), chosen)
	if makeErr != nil {
		state, reason = sandbox.Gone, records.ReasonUnmade
	}
	sb, err = s.Records.Finalize(late, p.Tenant, p.Spec.ID, intent, audit.Outcome{Err: makeErr}, func(b *store.Sandbox) {
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
		return sb, image, makeErr
	case err != nil:
		// The sandbox is running, but its record says "creating". The next
		// reconciliation fixes that.
		return sb, image, err
	}
	s.Ends.Follow(p.Tenant, made)
	s.Records.LifetimeChanged.Send()
	return sb, made.Image(), s.Core.Fault("create.done")
}

// bringUp creates a recorded sandbox from its image or from its snapshot, which is
// from if that is not nil. Before that, it stores what must not be in the record
// elsewhere. It does not load copies of workspaces.
func (s *Creator) bringUp(ctx context.Context, be *providers.Backend, p *plan.Plan, from *driver.SnapshotRef) (made *engine.Sandbox, how driver.Restored, err error) {
	if err := s.Snapshots.PutEnvironment(p.Spec.ID, p.Spec.Env); err != nil {
		return nil, how, err
	}
	mounted, err := s.Workspaces.Mount(ctx, *p, be.Facts)
	switch {
	case err != nil:
		return nil, how, err
	case from != nil:
		return be.Engine.Restore(ctx, mounted, *from)
	case p.Origin != "":
		return s.Snapshots.Restore(ctx, be, mounted, p.Origin)
	}
	made, err = be.Engine.Create(ctx, mounted, nil)
	return made, how, err
}
