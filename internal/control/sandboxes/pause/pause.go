// Package pause pauses, stops and restarts sandboxes.
package pause

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/prepare"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/workspaces"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Pauser pauses, stops and restarts sandboxes. The caller fills in the fields.
type Pauser struct {
	Core       *core.Core
	Records    *records.Records
	Prepare    *prepare.Preparer
	Remover    *remove.Remover
	Ends       *supervise.Ends
	Mains      *supervise.Mains
	Exec       supervise.Background
	Providers  *providers.Service
	Workspaces *workspaces.Service
	Snapshots  *snapshots.Service
	Secrets    *secrets.Service
	Ports      *ports.Service
	Recordings Recordings
}

// Recordings stores recordings of terminals.
type Recordings interface {
	// Flush stores the recordings of a sandbox as they are now. It takes 10
	// seconds at most.
	Flush(ctx context.Context, id sandbox.ID)
}

const (
	opPause  = ops.SandboxPause
	opResume = ops.SandboxResume
	opStop   = ops.SandboxStop
	opStart  = ops.SandboxStart
)

// Pause pauses a sandbox: in memory, or to disk, where it uses no memory and
// has no processes. It succeeds if the sandbox is already paused. The lifetime
// of a paused sandbox does not run, if its provider can stop it.
func (s *Pauser) Pause(ctx context.Context, ref string, toDisk bool) (_ store.Sandbox, err error) {
	defer core.Name(opPause, &err)
	op := lifecycle.Pause
	if toDisk {
		op = lifecycle.Sleep
	}
	t, err := s.Records.Lock(ctx, ref, opPause, op)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.Release()
	if t.Verdict == lifecycle.Done {
		return t.Sandbox, nil
	}
	return s.PauseLocked(ctx, t, toDisk, t.Sandbox.Spec.Lifetime.Wakes)
}

// PauseLocked pauses a sandbox that the caller has locked. wakes means that the
// next use resumes it.
func (s *Pauser) PauseLocked(ctx context.Context, t *records.Operation, toDisk, wakes bool) (store.Sandbox, error) {
	if toDisk {
		return s.putAway(ctx, t, away{
			step: records.StepSleep, memory: s.HasMemory(ctx, &t.Sandbox),
			to: records.Resting{State: sandbox.Paused, Pause: sandbox.PauseDisk, Wakes: wakes},
		})
	}
	return s.freeze(ctx, t, wakes)
}

// PutToSleep pauses a sandbox to disk without a request. A sandbox whose memory
// cannot be saved is paused in memory instead.
func (s *Pauser) PutToSleep(ctx context.Context, t *records.Operation, wakes bool) error {
	b, err := s.PauseLocked(ctx, t, true, wakes)
	if sandbox.CodeOf(err) != sandbox.CodeUnsupported || b.State != t.Sandbox.State {
		return err
	}
	t.Sandbox = b
	_, err = s.PauseLocked(ctx, t, false, wakes)
	return err
}

// HasMemory reports whether snapshots of a sandbox contain memory.
func (s *Pauser) HasMemory(ctx context.Context, b *store.Sandbox) bool {
	be, err := s.Providers.Of(ctx, b)
	return err == nil && be.HasMemory(ctx)
}

// Keeps reports whether the files of a sandbox can be kept when it ends. They
// cannot for a sandbox that was created without a daemon, because its
// configuration is unknown.
func (s *Pauser) Keeps(b *store.Sandbox, sb *engine.Sandbox) bool {
	return b.Spec.ID != "" && engine.Can[driver.Snapshotter](sb)
}

// freeze pauses a sandbox in memory.
func (s *Pauser) freeze(ctx context.Context, t *records.Operation, wakes bool) (store.Sandbox, error) {
	sb, err := s.Records.Attach(ctx, &t.Sandbox)
	if err != nil {
		return t.Sandbox, err
	}
	if !engine.Can[driver.Pauser](sb) {
		return t.Sandbox, records.Unsupported(&t.Sandbox, "this provider cannot pause in memory", "pause to disk instead, with: atoll pause --to-disk "+t.Sandbox.Name)
	}
	s.Flush(ctx, t.Sandbox.ID)
	if err := s.Workspaces.Save(ctx, t.Sandbox.ID, "the sandbox "+t.Sandbox.Name+" was paused"); err != nil {
		return t.Sandbox, err
	}
	intent, err := s.Records.Enter(ctx, t, func(b *store.Sandbox) {
		b.State, b.Rest.Step, b.Rest.Wakes = sandbox.Pausing, records.StepPause, wakes
	}, nil)
	if err != nil {
		return t.Sandbox, err
	}
	s.Records.Uses.Suspend(t.Sandbox.ID)
	if err := s.Core.Fault("pause.recorded"); err != nil {
		return t.Sandbox, err
	}
	stopped := s.stopClock(ctx, sb, &t.Sandbox)
	if err = sb.Pause(ctx); err != nil && stopped && t.Sandbox.Spec.Lifetime.HardTimeout() > 0 {
		s.Core.Report(ctx, sb.SetDeadline(context.WithoutCancel(ctx), t.Sandbox.Expires))
	}
	if err := s.Core.Fault("pause.done"); err != nil {
		return t.Sandbox, err
	}
	return s.Records.Leave(ctx, t, intent, err, func(b *store.Sandbox) {
		b.State, b.Reason, b.Rest = sandbox.Paused, "", store.Rest{Pause: sandbox.PauseMemory, Wakes: wakes}
		if stopped {
			s.Records.HoldClock(b)
		}
	}, nil)
}

// Flush stores the recordings of a sandbox as they are now.
func (s *Pauser) Flush(ctx context.Context, id sandbox.ID) { s.Recordings.Flush(ctx, id) }

// stopClock stops the provider's lifetime of a sandbox that is about to be
// paused, and reports whether it did. Some providers cannot.
func (s *Pauser) stopClock(ctx context.Context, sb *engine.Sandbox, b *store.Sandbox) bool {
	switch {
	case b.Expires.IsZero():
		return false
	case b.Spec.Lifetime.HardTimeout() == 0:
		return true // the daemon enforces the lifetime
	case !engine.Can[driver.DeadlineSetter](sb):
		return false
	}
	return sb.SetDeadline(ctx, time.Time{}) == nil
}

// away describes how a sandbox is put to disk.
type away struct {
	step   string
	memory bool // with memory and processes
	to     records.Resting
}

const reasonFilesOnly = "only its files are kept, because its provider keeps no memory"

// putAway writes a snapshot of a sandbox and ends it. The provider ends it when
// the snapshot is complete.
func (s *Pauser) putAway(ctx context.Context, t *records.Operation, how away) (store.Sandbox, error) {
	sb, err := s.Records.Attach(ctx, &t.Sandbox)
	if err != nil {
		return t.Sandbox, err
	}
	if !s.Keeps(&t.Sandbox, sb) {
		return t.Sandbox, snapshots.CannotKeep(&t.Sandbox)
	}
	s.Flush(ctx, t.Sandbox.ID)
	if err := s.Workspaces.Save(ctx, t.Sandbox.ID, "the sandbox "+t.Sandbox.Name+" was put to disk"); err != nil {
		return t.Sandbox, err
	}
	id := snapshots.NewID()
	intent, err := s.Records.Enter(ctx, t, func(b *store.Sandbox) {
		b.State, b.Rest.Step, b.Rest.Kept, b.Rest.Wakes = sandbox.Pausing, how.step, id, how.to.Wakes
	}, func(tx *store.Tx) error {
		_, err := tx.Snapshots().Create(ctx, t.Sandbox.Tenant, snapshots.Describe(&t.Sandbox, store.Snapshot{Snapshot: durable.Snapshot{ID: id, Memory: how.memory}, Owner: t.Sandbox.ID}))
		return err
	})
	if err != nil {
		return t.Sandbox, err
	}
	s.Records.Uses.Suspend(t.Sandbox.ID)
	if err := s.Core.Fault(how.step + ".recorded"); err != nil {
		return t.Sandbox, err
	}
	snap, err := s.writeDown(ctx, t, sb, driver.SnapshotOptions{ID: id, Memory: how.memory, Stop: true})
	if err != nil {
		return s.undoAway(ctx, t, intent, id, err)
	}
	// The sandbox has ended, so this must be completed.
	late := context.WithoutCancel(ctx)
	if err := s.Core.Fault(how.step + ".kept"); err != nil {
		return t.Sandbox, err
	}
	s.Core.Report(ctx, s.Records.End(late, &t.Sandbox))
	return s.Records.Leave(late, t, intent, nil, func(b *store.Sandbox) {
		s.Records.SetResting(b, how.to, id)
		if how.to.Pause != "" && snap.Ref.Kind != driver.SnapshotMemory {
			b.Reason = reasonFilesOnly
		}
	}, func(ctx context.Context, tx *store.Tx) error {
		return tx.Snapshots().Finish(ctx, t.Sandbox.Tenant, id, snapshots.Taken(snap))
	})
}

// writeDown writes a snapshot of a sandbox. A sandbox that is paused in memory
// is resumed for that.
func (s *Pauser) writeDown(ctx context.Context, t *records.Operation, sb *engine.Sandbox, opts driver.SnapshotOptions) (snap driver.Snapshot, err error) {
	if t.Sandbox.State == sandbox.Paused {
		if err := sb.Resume(ctx); err != nil {
			return snap, err
		}
	}
	return sb.Snapshot(ctx, opts)
}

// undoAway records that a sandbox could not be put to disk and is running or
// paused as before.
func (s *Pauser) undoAway(ctx context.Context, t *records.Operation, intent *audit.Intent, id string, failed error) (store.Sandbox, error) {
	if t.Sandbox.State == sandbox.Paused {
		if sb, err := s.Records.Attach(ctx, &t.Sandbox); err == nil {
			s.Core.Report(ctx, sb.Pause(context.WithoutCancel(ctx)))
		}
	}
	b, err := s.Records.Leave(ctx, t, intent, failed, nil, nil)
	late := store.WithReserve(context.WithoutCancel(ctx))
	s.Core.Report(ctx, s.Core.Store.Update(late, func(tx *store.Tx) error { return tx.Snapshots().Delete(late, t.Sandbox.Tenant, id) }))
	return b, err
}
