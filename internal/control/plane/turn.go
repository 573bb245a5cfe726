package plane

import (
	"context"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// turn is the right to change one sandbox: nobody else does until release.
type turn struct {
	box     store.Sandbox
	action  audit.Action
	verdict lifecycle.Verdict
	release func()
}

// turn authorises an operation on a sandbox, waits until nobody else changes
// it, and decides whether the operation can be done. The caller releases it.
func (p *Plane) turn(ctx context.Context, ref string, action ops.Op, op lifecycle.Op) (_ *turn, err error) {
	ctx, end := span.Start(ctx, "turn", string(action), "")
	defer func() { end(err) }()
	who, a, err := p.Admit(ctx, action, guard.Subject{Subject: ref})
	if err != nil {
		return nil, err
	}
	b, err := p.find(ctx, who.Tenant, ref)
	if err != nil {
		return nil, err
	}
	if err := core.FirstError(p.here(&b), p.making.Wait(ctx, b.ID)); err != nil {
		return nil, err
	}
	a.Sandbox, a.Name, a.Subject = b.ID, b.Name, b.Name
	return p.lockedTurn(ctx, who.Tenant, b.ID, a, op)
}

// lockedTurn waits for a sandbox and decides about it.
func (p *Plane) lockedTurn(ctx context.Context, tenant string, id sandbox.ID, a audit.Action, op lifecycle.Op) (*turn, error) {
	release, err := p.locks.Take(ctx, id)
	if err != nil {
		return nil, err
	}
	t := &turn{action: a, release: release}
	if t.box, err = p.record(ctx, tenant, id); err == nil {
		err = p.mirror(ctx, &t.box)
	}
	if err == nil {
		t.verdict, err = lifecycle.Decide(view(&t.box), op)
	}
	if err != nil {
		release()
		return nil, err
	}
	return t, nil
}

// view is what counts of a record for package lifecycle.
func view(b *store.Sandbox) lifecycle.Box {
	return lifecycle.Box{
		Name: b.Name, State: b.State, Reason: b.Reason, Pause: b.Rest.Pause, Kept: b.Rest.Kept != "", Wakes: b.Rest.Wakes,
	}
}

// enter records that a change is about to happen, together with the state on
// the way there. also may add to the transaction.
func (p *Plane) enter(ctx context.Context, t *turn, change func(*store.Sandbox), also func(*store.Tx) error) (intent *audit.Intent, err error) {
	err = p.Store.Update(ctx, func(tx *store.Tx) error {
		if _, err := tx.UpdateSandbox(ctx, t.box.Tenant, t.box.ID, store.Expect{Version: t.box.Version}, change); err != nil {
			return err
		}
		if also != nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		var err error
		intent, err = p.Audit.BeginTx(ctx, tx, t.action)
		return err
	})
	return intent, err
}

// leave records what became of a change. One that failed leaves the sandbox as
// it was before. also may add to the transaction of one that did not.
func (p *Plane) leave(ctx context.Context, t *turn, intent *audit.Intent, failed error, change func(*store.Sandbox), also func(context.Context, *store.Tx) error) (store.Sandbox, error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if failed != nil {
		change = func(b *store.Sandbox) {
			b.State, b.Rest, b.Resources, b.Expires = t.box.State, t.box.Rest, t.box.Resources, t.box.Expires
		}
	}
	b, err := p.settleWith(late, t.box.Tenant, t.box.ID, intent, audit.Outcome{Err: failed}, change, func(tx *store.Tx) error {
		if also == nil {
			return nil
		}
		return also(late, tx)
	})
	if err != nil {
		p.unsettled.Store(true) // the next reconciliation sees to it
	}
	p.due.soon() // its lifetime may be another
	if failed != nil {
		p.Report(ctx, err)
		return b, failed
	}
	return b, err
}

// again is the request that makes a recorded sandbox anew.
func (p *Plane) again(b *store.Sandbox) (control.CreateRequest, error) {
	env, err := p.Snapshots.Environment(b)
	spec := b.Spec
	spec.Provider = b.Provider
	spec.ID, spec.Name, spec.Labels, spec.Resources, spec.Env, spec.Snapshot = b.ID, b.Name, b.Labels, b.Resources, env, ""
	if spec.Lifetime.Timeout > 0 { // else it is we who end it
		spec.Lifetime.Timeout = b.Rest.Left
	}
	return control.CreateRequest{Spec: spec, Pull: control.PullNever, Tenant: b.Tenant, Reserved: true}, err
}

// discard forgets what was kept of a sandbox that is gone.
func (p *Plane) discard(ctx context.Context, b *store.Sandbox) {
	p.Snapshots.ForgetEnvironment(ctx, b.ID)
	p.Snapshots.Drop(ctx, b.Provider, b.Rest.Kept)
	p.uses.forget(b.ID)
	p.Secrets.Forget(b.ID)
}

// LockForSnapshot authorizes a snapshot of a sandbox, and waits until nobody else
// changes the sandbox.
func (p *Plane) LockForSnapshot(ctx context.Context, ref string) (*snapshots.Locked, error) {
	t, err := p.turn(ctx, ref, ops.SnapshotCreate, lifecycle.Snapshot)
	if err != nil {
		return nil, err
	}
	return &snapshots.Locked{Sandbox: t.box, Action: t.action, Release: t.release}, nil
}

// Attach returns a handle on a recorded sandbox of this node that passes no guard.
func (p *Plane) Attach(ctx context.Context, b *store.Sandbox) (*control.Sandbox, error) {
	return p.attach(ctx, b)
}
