package plane

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// finishStep brings a sandbox that a daemon left between two states to one of
// them. The caller has locked it, so nobody is at it.
func (p *Plane) finishStep(ctx context.Context, b *store.Sandbox) error {
	f, there, err := p.lookFor(ctx, b)
	if err != nil {
		return err
	}
	lives := there && (f.State == sandbox.Running || f.State == sandbox.Paused)
	switch {
	case b.Rest.Kept == "" && lives: // in memory: to go on is safe both ways
		return p.goOn(ctx, b)
	case b.Rest.Kept == "" && there:
		return p.reconcileEnded(ctx, b, f)
	case b.Rest.Kept == "":
		return p.observe(ctx, b, found{state: sandbox.Gone, reason: gone(b)})
	case lives && b.State == sandbox.Resuming:
		return p.finishBring(ctx, b)
	case lives: // it was not put away: what was written is not needed
		return p.goOn(ctx, b)
	case b.State == sandbox.Resuming:
		return p.undoBring(ctx, b)
	}
	return p.finishAway(ctx, b)
}

// lookFor asks the provider for one sandbox, by looking at all there are.
func (p *Plane) lookFor(ctx context.Context, b *store.Sandbox) (f driver.Found, there bool, err error) {
	be, err := p.Providers.Of(ctx, b)
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

// correct records what a sandbox was brought to.
func (p *Plane) correct(ctx context.Context, b *store.Sandbox, t eventlog.Type, change func(*store.Sandbox), also func(*store.Tx) error) error {
	err := p.Store.Update(ctx, func(tx *store.Tx) error {
		if _, err := tx.UpdateSandbox(ctx, b.Tenant, b.ID, store.Expect{Version: b.Version, Observed: true}, change); err != nil {
			return err
		}
		if also == nil {
			return nil
		}
		return also(tx)
	})
	if err != nil {
		return ignoreChanged(err)
	}
	fact := audit.Action{Tenant: b.Tenant, Op: ops.SandboxObserve, Sandbox: b.ID, Name: b.Name, Subject: b.Name}
	return p.Audit.Fact(ctx, fact, t, nil)
}

// goOn makes a sandbox that still lives run, whatever was about to be done to
// it.
func (p *Plane) goOn(ctx context.Context, b *store.Sandbox) error {
	box, err := p.Providers.Attach(ctx, b)
	if err != nil {
		return err
	}
	if err := box.Resume(ctx); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		return err
	}
	if b.Spec.Lifetime.HardTimeout() > 0 && (!b.Expires.IsZero() || b.Rest.Left > 0) {
		at := b.Expires
		if b.Rest.Left > 0 {
			at = p.Store.Now().Add(b.Rest.Left)
		}
		if err := box.SetDeadline(ctx, at); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
			return err
		}
	}
	if b.Rest.Step == stepUpdate {
		if err := box.Resize(ctx, b.Resources); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
			return err
		}
	}
	kept := b.Rest.Kept
	err = p.correct(ctx, b, eventlog.Resumed, func(b *store.Sandbox) { p.runs(b, "") }, func(tx *store.Tx) error {
		return tx.DeleteSnapshot(ctx, b.Tenant, kept)
	})
	if err != nil {
		return err
	}
	p.follow(b.Tenant, box)
	p.drop(ctx, b.Provider, kept)
	return nil
}

// finishAway completes what was written of a sandbox that has ended since. If
// nothing was, it ended for another reason.
func (p *Plane) finishAway(ctx context.Context, b *store.Sandbox) error {
	_, keeper, err := p.keeperOf(ctx, b)
	if err != nil {
		return err
	}
	snap, err := keeper.FindSnapshot(ctx, b.Rest.Kept)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		kept := b.Rest.Kept
		err := p.correct(ctx, b, eventlog.Ended, func(b *store.Sandbox) {
			b.State, b.Reason, b.Rest = sandbox.Gone, "it ended while it was being put away", store.Rest{}
		}, func(tx *store.Tx) error { return tx.DeleteSnapshot(ctx, b.Tenant, kept) })
		if err == nil {
			err = p.end(ctx, b)
			p.discard(ctx, b)
		}
		return err
	}
	if err != nil {
		p.unsettled.Store(true)
		return err
	}
	if err := p.end(ctx, b); err != nil {
		return err
	}
	how, event := away{state: sandbox.Stopped, wakes: b.Rest.Wakes}, eventlog.Stopped
	if b.Rest.Step == stepSleep {
		how.state, how.pause, event = sandbox.Paused, sandbox.PauseDisk, eventlog.Paused
	}
	id := b.Rest.Kept
	return p.correct(ctx, b, event, func(b *store.Sandbox) { p.rests(b, how, id) }, func(tx *store.Tx) error {
		return tx.FinishSnapshot(ctx, b.Tenant, id, taken(snap))
	})
}

// finishBring records that a sandbox was brought back before the daemon died.
func (p *Plane) finishBring(ctx context.Context, b *store.Sandbox) error {
	id := b.Rest.Kept
	err := p.correct(ctx, b, eventlog.Resumed, func(b *store.Sandbox) { p.runs(b, "") }, func(tx *store.Tx) error {
		return tx.DeleteSnapshot(ctx, b.Tenant, id)
	})
	if err != nil {
		return err
	}
	if box, err := p.Providers.Attach(ctx, b); err == nil {
		p.follow(b.Tenant, box)
	}
	p.drop(ctx, b.Provider, id)
	return nil
}

// undoBring records that a sandbox was not brought back: it rests as before.
func (p *Plane) undoBring(ctx context.Context, b *store.Sandbox) error {
	if err := p.end(ctx, b); err != nil { // half of it may be there
		return err
	}
	how, event := away{state: sandbox.Stopped, wakes: b.Rest.Wakes}, eventlog.Stopped
	if b.Rest.Step == stepResume {
		how.state, how.pause, event = sandbox.Paused, sandbox.PauseDisk, eventlog.Paused
	}
	return p.correct(ctx, b, event, func(b *store.Sandbox) { p.rests(b, how, b.Rest.Kept) }, nil)
}

// sweepSnapshots removes snapshots that nobody finished, and bytes that no
// record wants.
func (p *Plane) sweepSnapshots(ctx context.Context) error {
	var there []keptSnapshot
	// Before the records: what is made meanwhile is not seen.
	err := p.keptSnapshots(ctx, func(k driver.SnapshotKeeper, f driver.FoundSnapshot) { there = append(there, keptSnapshot{f, k}) })
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for after := ""; ; {
		const batch = 500
		part, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Snapshot, error) {
			return tx.Operator().Snapshots(ctx, p.Node, after, batch)
		})
		if err != nil {
			return err
		}
		for _, s := range part {
			if s.Ready || s.Owner != "" || p.writing.Has(s.ID) {
				wanted[s.ID] = true
				continue
			}
			if err := p.Store.Update(ctx, func(tx *store.Tx) error { return tx.DeleteSnapshot(ctx, s.Tenant, s.ID) }); err != nil {
				return err
			}
		}
		if len(part) < batch {
			break
		}
		after = part[len(part)-1].ID
	}
	var failed []error
	for _, f := range there {
		if wanted[f.ID] || p.writing.Has(f.ID) {
			continue
		}
		cached, err := p.isArchived(ctx, f.ID) // of another node
		if err == nil && !cached {
			err = f.keeper.RemoveSnapshot(ctx, f.Ref)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// sweepEnvironments forgets the environments of sandboxes and snapshots that are
// gone.
func (p *Plane) sweepEnvironments(ctx context.Context) error {
	if p.cfg.Environments == nil {
		return nil
	}
	there, err := p.cfg.Environments.List()
	if err != nil {
		return err
	}
	var failed []error
	for _, id := range there {
		b, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Sandbox, error) {
			b, err := tx.Operator().Sandbox(ctx, id)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				_, err = tx.Operator().Snapshot(ctx, string(id))
			}
			return b, err
		})
		switch {
		case err == nil && b.State == sandbox.Gone, sandbox.CodeOf(err) == sandbox.CodeNotFound:
			failed = append(failed, p.cfg.Environments.Remove(id))
		case err != nil:
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
