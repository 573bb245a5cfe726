package records

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Operation is the exclusive right to change one sandbox, until release.
type Operation struct {
	Sandbox store.Sandbox
	Action  audit.Action
	Verdict lifecycle.Verdict
	Release func()
}

// Lock authorises an operation on a sandbox, waits for other operations on it,
// and checks whether the operation is possible. The caller releases it.
func (s *Records) Lock(ctx context.Context, ref string, action ops.Op, op lifecycle.Op) (_ *Operation, err error) {
	ctx, end := span.Start(ctx, "turn", string(action), "")
	defer func() { end(err) }()
	who, a, err := s.Core.Admit(ctx, action, guard.Subject{Subject: ref})
	if err != nil {
		return nil, err
	}
	b, err := s.Find(ctx, who.Tenant, ref)
	if err != nil {
		return nil, err
	}
	if err := core.FirstError(s.Here(ctx, &b), s.Inflight.Wait(ctx, b.ID)); err != nil {
		return nil, err
	}
	a.Sandbox, a.Name, a.Subject = b.ID, b.Name, b.Name
	return s.LockID(ctx, who.Tenant, b.ID, a, op)
}

// LockID locks a sandbox and checks whether the operation is possible.
func (s *Records) LockID(ctx context.Context, tenant string, id sandbox.ID, a audit.Action, op lifecycle.Op) (*Operation, error) {
	release, err := s.Locks.Take(ctx, id)
	if err != nil {
		return nil, err
	}
	t := &Operation{Action: a, Release: release}
	if t.Sandbox, err = s.Record(ctx, tenant, id); err == nil {
		err = s.Mirror(ctx, &t.Sandbox)
	}
	if err == nil {
		t.Verdict, err = lifecycle.Decide(View(&t.Sandbox), op)
	}
	if err != nil {
		release()
		return nil, err
	}
	return t, nil
}

// View returns the parts of a record that package lifecycle uses.
func View(b *store.Sandbox) lifecycle.Sandbox {
	return lifecycle.Sandbox{
		Name: b.Name, State: b.State, Reason: b.Reason, Pause: b.Rest.Pause, Kept: b.Rest.Kept != "", Wakes: b.Rest.Wakes,
	}
}

// Enter records the attempt of a change together with the transitional state.
// also may add to the transaction.
func (s *Records) Enter(ctx context.Context, t *Operation, change func(*store.Sandbox), also func(*store.Tx) error) (intent *audit.Intent, err error) {
	err = s.Core.Store.Update(ctx, func(tx *store.Tx) error {
		if _, err := tx.Sandboxes().Update(ctx, t.Sandbox.Tenant, t.Sandbox.ID, store.Expect{Version: t.Sandbox.Version}, change); err != nil {
			return err
		}
		if also != nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		var err error
		intent, err = s.Core.Audit.BeginTx(ctx, tx, t.Action)
		return err
	})
	return intent, err
}

// Leave records the outcome of a change. If the change failed, the sandbox gets
// its former state. also may add to the transaction if it succeeded.
func (s *Records) Leave(ctx context.Context, t *Operation, intent *audit.Intent, failed error, change func(*store.Sandbox), also func(context.Context, *store.Tx) error) (store.Sandbox, error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), FinalizeTimeout)
	defer cancel()
	if failed != nil {
		change = func(b *store.Sandbox) {
			b.State, b.Rest, b.Resources, b.Expires = t.Sandbox.State, t.Sandbox.Rest, t.Sandbox.Resources, t.Sandbox.Expires
		}
	}
	b, err := s.Finalize(late, t.Sandbox.Tenant, t.Sandbox.ID, intent, audit.Outcome{Err: failed}, change, func(tx *store.Tx) error {
		if also == nil {
			return nil
		}
		return also(late, tx)
	})
	if err != nil {
		s.Recheck.Again() // the next reconciliation handles it
	}
	s.LifetimeChanged.Send() // its lifetime may have changed
	if failed != nil {
		s.Core.Report(ctx, err)
		return b, failed
	}
	return b, err
}

// FinalizeTimeout limits the recording of an outcome when the caller has gone.
const FinalizeTimeout = 10 * time.Second

// Finalize records the outcome of an action together with its change. also, if not
// nil, may add to the transaction if the action succeeded.
func (s *Records) Finalize(ctx context.Context, tenant string, id sandbox.ID, intent *audit.Intent, out audit.Outcome, change func(*store.Sandbox), also func(*store.Tx) error) (sb store.Sandbox, err error) {
	ctx = store.WithReserve(ctx)
	err = s.Core.Store.Update(ctx, func(tx *store.Tx) error {
		var err error
		sb, err = tx.Sandboxes().Update(ctx, tenant, id, store.Expect{Observed: true, Node: s.Core.Node}, change)
		if err != nil {
			return err
		}
		if also != nil && out.Err == nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		return intent.EndTx(ctx, tx, out)
	})
	if err != nil {
		s.Core.Report(ctx, intent.End(out))
		s.Recheck.Soon()
		return sb, err
	}
	s.Ports.Sync(&sb)
	return sb, nil
}

// LockForSnapshot authorises a snapshot of a sandbox, and waits for other
// operations on it.
func (s *Records) LockForSnapshot(ctx context.Context, ref string) (*snapshots.Locked, error) {
	t, err := s.Lock(ctx, ref, ops.SnapshotCreate, lifecycle.Snapshot)
	if err != nil {
		return nil, err
	}
	return &snapshots.Locked{Sandbox: t.Sandbox, Action: t.Action, Release: t.Release}, nil
}
