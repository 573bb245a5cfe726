package sandboxes

import (
	"context"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// operation is the exclusive right to change one sandbox, until release.
type operation struct {
	box     store.Sandbox
	action  audit.Action
	verdict lifecycle.Verdict
	release func()
}

// lock authorises an operation on a sandbox, waits for other operations on it,
// and checks whether the operation is possible. The caller releases it.
func (s *records) lock(ctx context.Context, ref string, action ops.Op, op lifecycle.Op) (_ *operation, err error) {
	ctx, end := span.Start(ctx, "turn", string(action), "")
	defer func() { end(err) }()
	who, a, err := s.Admit(ctx, action, guard.Subject{Subject: ref})
	if err != nil {
		return nil, err
	}
	b, err := s.find(ctx, who.Tenant, ref)
	if err != nil {
		return nil, err
	}
	if err := core.FirstError(s.here(ctx, &b), s.inflight.Wait(ctx, b.ID)); err != nil {
		return nil, err
	}
	a.Sandbox, a.Name, a.Subject = b.ID, b.Name, b.Name
	return s.lockID(ctx, who.Tenant, b.ID, a, op)
}

// lockID locks a sandbox and checks whether the operation is possible.
func (s *records) lockID(ctx context.Context, tenant string, id sandbox.ID, a audit.Action, op lifecycle.Op) (*operation, error) {
	release, err := s.locks.Take(ctx, id)
	if err != nil {
		return nil, err
	}
	t := &operation{action: a, release: release}
	if t.box, err = s.record(ctx, tenant, id); err == nil {
		err = s.mirror(ctx, &t.box)
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

// view returns the parts of a record that package lifecycle uses.
func view(b *store.Sandbox) lifecycle.Box {
	return lifecycle.Box{
		Name: b.Name, State: b.State, Reason: b.Reason, Pause: b.Rest.Pause, Kept: b.Rest.Kept != "", Wakes: b.Rest.Wakes,
	}
}

// enter records the attempt of a change together with the transitional state.
// also may add to the transaction.
func (s *records) enter(ctx context.Context, t *operation, change func(*store.Sandbox), also func(*store.Tx) error) (intent *audit.Intent, err error) {
	err = s.Store.Update(ctx, func(tx *store.Tx) error {
		if _, err := tx.Sandboxes().Update(ctx, t.box.Tenant, t.box.ID, store.Expect{Version: t.box.Version}, change); err != nil {
			return err
		}
		if also != nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		var err error
		intent, err = s.Audit.BeginTx(ctx, tx, t.action)
		return err
	})
	return intent, err
}

// leave records the outcome of a change. If the change failed, the sandbox gets
// its former state. also may add to the transaction if it succeeded.
func (s *records) leave(ctx context.Context, t *operation, intent *audit.Intent, failed error, change func(*store.Sandbox), also func(context.Context, *store.Tx) error) (store.Sandbox, error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
	defer cancel()
	if failed != nil {
		change = func(b *store.Sandbox) {
			b.State, b.Rest, b.Resources, b.Expires = t.box.State, t.box.Rest, t.box.Resources, t.box.Expires
		}
	}
	b, err := s.finalizeWith(late, t.box.Tenant, t.box.ID, intent, audit.Outcome{Err: failed}, change, func(tx *store.Tx) error {
		if also == nil {
			return nil
		}
		return also(late, tx)
	})
	if err != nil {
		s.unsettled.Store(true) // the next reconciliation handles it
	}
	s.due.soon() // its lifetime may have changed
	if failed != nil {
		s.Report(ctx, err)
		return b, failed
	}
	return b, err
}

// again returns the request to make a recorded sandbox again.
func (s *records) again(ctx context.Context, b *store.Sandbox) (ask plan.Ask, err error) {
	spec := b.Spec
	spec.Provider = b.Provider
	spec.ID, spec.Name, spec.Labels, spec.Resources, spec.Snapshot = b.ID, b.Name, b.Labels, b.Resources, ""
	if spec.Lifetime.Timeout > 0 { // otherwise the daemon enforces the lifetime
		spec.Lifetime.Timeout = b.Rest.Left
	}
	if spec.Env, err = s.Snapshots.Environment(b); err != nil {
		return ask, err
	}
	ask = plan.Ask{
		CreateRequest: sandbox.CreateRequest{Spec: spec, Pull: string(control.PullNever)}, Tenant: b.Tenant, Images: []string{b.Image, spec.Image}, Again: true,
	}
	ask.Policies, err = s.Policies.Known(ctx, b.Tenant, &spec, ask.Images)
	ask.Policies.Fetches = false // its image is the one that it had
	return ask, err
}

// discard removes data kept for a sandbox that is gone.
func (s *records) discard(ctx context.Context, b *store.Sandbox) {
	s.Snapshots.ForgetEnvironment(ctx, b.ID)
	s.Snapshots.Drop(ctx, b.Provider, b.Rest.Kept)
	s.uses.Forget(b.ID)
	s.Secrets.Forget(b.ID)
}

// LockForSnapshot authorises a snapshot of a sandbox, and waits for other
// operations on it.
func (s *records) LockForSnapshot(ctx context.Context, ref string) (*snapshots.Locked, error) {
	t, err := s.lock(ctx, ref, ops.SnapshotCreate, lifecycle.Snapshot)
	if err != nil {
		return nil, err
	}
	return &snapshots.Locked{Sandbox: t.box, Action: t.action, Release: t.release}, nil
}

// Attach returns an unguarded handle on a recorded sandbox of this node.
func (s *records) Attach(ctx context.Context, b *store.Sandbox) (*control.Sandbox, error) {
	return s.attach(ctx, b)
}
