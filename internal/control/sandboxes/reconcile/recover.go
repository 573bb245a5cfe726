package reconcile

import (
	"context"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// finishStep completes or undoes a state change that a daemon left unfinished.
// The caller holds the sandbox's lock.
func (s *Reconciler) finishStep(ctx context.Context, b *store.Sandbox) error {
	f, there, err := s.lookFor(ctx, b)
	if err != nil {
		return err
	}
	if b.Rest.Step == records.StepFork {
		if err := s.Records.End(ctx, b); err != nil {
			return err
		}
		return s.Records.Observe(ctx, b, records.Found{State: sandbox.Gone, Reason: records.ReasonUnfinished})
	}
	lives := there && (f.State == sandbox.Running || f.State == sandbox.Paused)
	switch {
	case b.Rest.Kept == "" && lives: // in memory: resuming is safe in both cases
		return s.goOn(ctx, b)
	case b.Rest.Kept == "" && there:
		return s.reconcileEnded(ctx, b, f)
	case b.Rest.Kept == "":
		return s.Records.Observe(ctx, b, records.Found{State: sandbox.Gone, Reason: gone(b)})
	case lives && b.State == sandbox.Resuming:
		return s.finishBring(ctx, b)
	case lives: // it did not end: the snapshot is not needed
		return s.goOn(ctx, b)
	case b.State == sandbox.Resuming:
		return s.undoBring(ctx, b)
	}
	return s.finishAway(ctx, b)
}

// lookFor finds one sandbox in the provider's list.
func (s *Reconciler) lookFor(ctx context.Context, b *store.Sandbox) (f driver.Found, there bool, err error) {
	be, err := s.Providers.Of(ctx, b)
	if err != nil {
		return f, false, err
	}
	for f, err := range be.Driver.List(ctx) {
		if err != nil || f.ID == b.ID {
			return f, err == nil, err
		}
	}
	return f, false, nil
}

// correct records the state to which a sandbox was brought.
func (s *Reconciler) correct(ctx context.Context, b *store.Sandbox, t eventlog.Type, change func(*store.Sandbox), also func(*store.Tx) error) error {
	var now store.Sandbox
	err := s.Core.Store.Update(ctx, func(tx *store.Tx) (err error) {
		if now, err = tx.Sandboxes().Update(ctx, b.Tenant, b.ID, store.Expect{Version: b.Version, Observed: true}, change); err != nil {
			return err
		}
		if also == nil {
			return nil
		}
		return also(tx)
	})
	if err != nil {
		return records.IgnoreChanged(err)
	}
	s.Ports.Sync(&now)
	fact := audit.Action{Tenant: b.Tenant, Op: ops.SandboxObserve, Sandbox: b.ID, Name: b.Name, Subject: b.Name}
	return s.Core.Audit.Fact(ctx, fact, t, nil)
}

// goOn makes a sandbox that still exists run, and drops the unfinished change.
func (s *Reconciler) goOn(ctx context.Context, b *store.Sandbox) error {
	sb, err := s.Providers.Attach(ctx, b)
	if err != nil {
		return err
	}
	if err := sb.Resume(ctx); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		return err
	}
	if b.Spec.Lifetime.HardTimeout() > 0 && (!b.Expires.IsZero() || b.Rest.Left > 0) {
		at := b.Expires
		if b.Rest.Left > 0 {
			at = s.Core.Store.Now().Add(b.Rest.Left)
		}
		if err := sb.SetDeadline(ctx, at); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
			return err
		}
	}
	if b.Rest.Step == records.StepUpdate {
		if err := sb.Resize(ctx, b.Resources); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
			return err
		}
	}
	kept := b.Rest.Kept
	err = s.correct(ctx, b, eventlog.Resumed, func(b *store.Sandbox) { s.Records.SetRunning(b, "") }, func(tx *store.Tx) error {
		return tx.Snapshots().Delete(ctx, b.Tenant, kept)
	})
	if err != nil {
		return err
	}
	s.Ends.Refind(b.Tenant, sb)
	s.Snapshots.Drop(ctx, b.Provider, kept)
	return nil
}

// finishAway completes the pause or stop of a sandbox that has ended, if its
// state was written. Otherwise the sandbox ended for another reason.
func (s *Reconciler) finishAway(ctx context.Context, b *store.Sandbox) error {
	_, keeper, err := s.Snapshots.KeeperOf(ctx, b)
	if err != nil {
		return err
	}
	snap, err := keeper.FindSnapshot(ctx, b.Rest.Kept)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		kept := b.Rest.Kept
		err := s.correct(ctx, b, eventlog.Ended, func(b *store.Sandbox) {
			b.State, b.Reason, b.Rest = sandbox.Gone, "it ended while it was being put to disk", store.Rest{}
		}, func(tx *store.Tx) error { return tx.Snapshots().Delete(ctx, b.Tenant, kept) })
		if err == nil {
			err = s.Records.End(ctx, b)
			s.Records.Discard(ctx, b)
		}
		return err
	}
	if err != nil {
		s.Records.Recheck.Again()
		return err
	}
	if err := s.Records.End(ctx, b); err != nil {
		return err
	}
	how, event := records.Resting{State: sandbox.Stopped, Wakes: b.Rest.Wakes}, eventlog.Stopped
	if b.Rest.Step == records.StepSleep {
		how.State, how.Pause, event = sandbox.Paused, sandbox.PauseDisk, eventlog.Paused
	}
	id := b.Rest.Kept
	return s.correct(ctx, b, event, func(b *store.Sandbox) { s.Records.SetResting(b, how, id) }, func(tx *store.Tx) error {
		return tx.Snapshots().Finish(ctx, b.Tenant, id, snapshots.Taken(snap))
	})
}

// finishBring records that a sandbox was brought back before the daemon died.
func (s *Reconciler) finishBring(ctx context.Context, b *store.Sandbox) error {
	id := b.Rest.Kept
	err := s.correct(ctx, b, eventlog.Resumed, func(b *store.Sandbox) { s.Records.SetRunning(b, "") }, func(tx *store.Tx) error {
		return tx.Snapshots().Delete(ctx, b.Tenant, id)
	})
	if err != nil {
		return err
	}
	if sb, err := s.Providers.Attach(ctx, b); err == nil {
		s.Ends.Refind(b.Tenant, sb)
	}
	s.Snapshots.Drop(ctx, b.Provider, id)
	return nil
}

// undoBring records that a sandbox was not brought back and is in its former
// state.
func (s *Reconciler) undoBring(ctx context.Context, b *store.Sandbox) error {
	if err := s.Records.End(ctx, b); err != nil { // it may exist partially
		return err
	}
	how, event := records.Resting{State: sandbox.Stopped, Wakes: b.Rest.Wakes}, eventlog.Stopped
	if b.Rest.Step == records.StepResume {
		how.State, how.Pause, event = sandbox.Paused, sandbox.PauseDisk, eventlog.Paused
	}
	return s.correct(ctx, b, event, func(b *store.Sandbox) { s.Records.SetResting(b, how, b.Rest.Kept) }, nil)
}
