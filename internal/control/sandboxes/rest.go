package sandboxes

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// The steps that a crash can interrupt, as in store.Rest.Step. Names of fault
// points begin with them.
const (
	stepPause  = "pause"
	stepSleep  = "sleep"
	stepResume = "resume"
	stepStop   = "stop"
	stepStart  = "start"
	stepUpdate = "update"
	stepFork   = "fork" // a copy that is not visible until all copies have been created
)

const (
	opPause  = ops.SandboxPause
	opResume = ops.SandboxResume
	opStop   = ops.SandboxStop
	opStart  = ops.SandboxStart
	opWake   = ops.SandboxWake
)

// Pause pauses a sandbox: in memory, or to disk, where it uses no memory and
// has no processes. It succeeds if the sandbox is already paused. The lifetime
// of a paused sandbox does not run, if its provider can stop it.
func (s *pauser) Pause(ctx context.Context, ref string, toDisk bool) (_ store.Sandbox, err error) {
	defer core.Name(opPause, &err)
	op := lifecycle.Pause
	if toDisk {
		op = lifecycle.Sleep
	}
	t, err := s.lock(ctx, ref, opPause, op)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.release()
	if t.verdict == lifecycle.Done {
		return t.box, nil
	}
	b, err := s.pause(ctx, t, toDisk, t.box.Spec.Lifetime.Wakes)
	return b, err
}

func (s *pauser) pause(ctx context.Context, t *operation, toDisk, wakes bool) (store.Sandbox, error) {
	if toDisk {
		return s.putAway(ctx, t, away{step: stepSleep, memory: s.memory(ctx, &t.box), state: sandbox.Paused, pause: sandbox.PauseDisk, wakes: wakes})
	}
	return s.freeze(ctx, t, wakes)
}

// putToSleep pauses a sandbox to disk without a request. A sandbox whose memory
// cannot be saved is paused in memory instead.
func (s *pauser) putToSleep(ctx context.Context, t *operation, wakes bool) error {
	b, err := s.pause(ctx, t, true, wakes)
	if sandbox.CodeOf(err) != sandbox.CodeUnsupported || b.State != t.box.State {
		return err
	}
	t.box = b
	_, err = s.pause(ctx, t, false, wakes)
	return err
}

// memory reports whether snapshots of a sandbox contain memory.
func (s *pauser) memory(ctx context.Context, b *store.Sandbox) bool {
	be, err := s.Providers.Of(ctx, b)
	return err == nil && be.HasMemory(ctx)
}

// Resume resumes a paused sandbox. It succeeds if the sandbox is running.
func (s *pauser) Resume(ctx context.Context, ref string) (_ store.Sandbox, err error) {
	defer core.Name(opResume, &err)
	t, err := s.lock(ctx, ref, opResume, lifecycle.Resume)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.release()
	if t.verdict == lifecycle.Done {
		return t.box, nil
	}
	b, err := s.resume(ctx, t)
	return b, err
}

func (s *pauser) resume(ctx context.Context, t *operation) (store.Sandbox, error) {
	if t.box.Rest.Pause == sandbox.PauseDisk {
		return s.bring(ctx, t, stepResume, false)
	}
	return s.thaw(ctx, t)
}

// Reboot runs a paused or stopped sandbox again with its files, without its
// processes. It succeeds if the sandbox is running.
func (s *pauser) Reboot(ctx context.Context, ref string) (_ store.Sandbox, err error) {
	defer core.Name(opResume, &err)
	b, err := s.Get(ctx, ref)
	switch {
	case err != nil:
		return b, err
	case b.State == sandbox.Paused && b.Rest.Pause != sandbox.PauseDisk: // its files exist only in the paused sandbox
		if _, err := s.Stop(ctx, ref, 0); err != nil {
			return b, err
		}
		return s.Start(ctx, ref)
	case b.State == sandbox.Stopped:
		return s.Start(ctx, ref)
	}
	t, err := s.lock(ctx, ref, opResume, lifecycle.Resume)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.release()
	if t.verdict == lifecycle.Done {
		return t.box, nil
	}
	if t.box.Rest.Pause != sandbox.PauseDisk { // another operation was faster
		return t.box, &sandbox.Error{Code: sandbox.CodeConflict, Subject: t.box.Name, Message: "the sandbox has meanwhile been paused in another way", Hint: "try again"}
	}
	b, err = s.bring(ctx, t, stepResume, true)
	return b, err
}

// Start starts a stopped sandbox again with its files. It succeeds if the
// sandbox is running.
func (s *pauser) Start(ctx context.Context, ref string) (_ store.Sandbox, err error) {
	defer core.Name(opStart, &err)
	t, err := s.lock(ctx, ref, opStart, lifecycle.Start)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.release()
	b := t.box
	switch {
	case t.verdict != lifecycle.Done:
		b, err = s.bring(ctx, t, stepStart, false)
	case b.Spec.Main != nil && b.Exit != nil:
		err = s.startMain(ctx, &b, control.ImageConfig{})
	}
	return b, err
}

// Stop signals the commands of a sandbox, waits up to grace, and ends the
// sandbox. It keeps the files for Start. If the provider cannot keep them, Stop
// returns CodeUnsupported and changes nothing.
func (s *pauser) Stop(ctx context.Context, ref string, grace time.Duration) (_ store.Sandbox, err error) {
	defer core.Name(opStop, &err)
	if grace > 0 {
		proceed, err := s.calmDown(ctx, ref, grace)
		if err != nil {
			return store.Sandbox{}, err
		}
		defer proceed()
	}
	t, err := s.lock(ctx, ref, opStop, lifecycle.Stop)
	if err != nil {
		return s.stopUnusable(ctx, ref, err)
	}
	defer t.release()
	if t.verdict == lifecycle.Done {
		return t.box, nil
	}
	b, err := s.stopLocked(ctx, t)
	return b, err
}

// stopUnusable ends a failed sandbox, which cannot be stopped normally.
func (s *pauser) stopUnusable(ctx context.Context, ref string, why error) (store.Sandbox, error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return store.Sandbox{}, err
	}
	b, err := s.find(ctx, who.Tenant, ref)
	if err != nil || b.State != sandbox.Gone && b.State != sandbox.Failed {
		return store.Sandbox{}, why
	}
	if err := s.destroy(ctx, ref, opStop, reasonStopped); err != nil {
		return b, err
	}
	b, err = s.record(ctx, who.Tenant, b.ID)
	return b, err
}

func (s *pauser) stopLocked(ctx context.Context, t *operation) (store.Sandbox, error) {
	box, err := s.attach(ctx, &t.box)
	if err != nil {
		return t.box, err
	}
	if s.keeps(&t.box, box) {
		return s.putAway(ctx, t, away{step: stepStop, state: sandbox.Stopped})
	}
	return t.box, s.cannotStop(&t.box)
}

// cannotStop returns the error for a sandbox whose files cannot be kept.
func (s *pauser) cannotStop(b *store.Sandbox) error {
	message := "the sandbox would lose its files: this provider cannot keep them"
	if b.Spec.ID == "" {
		message = "the sandbox would lose its files: it was created without a daemon, so its configuration for a restart is unknown"
	}
	return unsupported(b, message, "to end it and lose its files, remove it with: atoll rm --force "+b.Name)
}

// keeps reports whether the files of a sandbox can be kept when it ends. They
// cannot for a sandbox that was created without a daemon, because its
// configuration is unknown.
func (s *pauser) keeps(b *store.Sandbox, box *control.Sandbox) bool {
	return b.Spec.ID != "" && control.Can[driver.Snapshotter](box)
}

// freeze pauses a sandbox in memory.
func (s *pauser) freeze(ctx context.Context, t *operation, wakes bool) (store.Sandbox, error) {
	box, err := s.attach(ctx, &t.box)
	if err != nil {
		return t.box, err
	}
	if !control.Can[driver.Pauser](box) {
		return t.box, unsupported(&t.box, "this provider cannot pause in memory", "pause to disk instead, with: atoll pause --to-disk "+t.box.Name)
	}
	s.Flush(ctx, t.box.ID)
	if err := s.Workspaces.Save(ctx, t.box.ID, "the sandbox "+t.box.Name+" was paused"); err != nil {
		return t.box, err
	}
	intent, err := s.enter(ctx, t, func(b *store.Sandbox) {
		b.State, b.Rest.Step, b.Rest.Wakes = sandbox.Pausing, stepPause, wakes
	}, nil)
	if err != nil {
		return t.box, err
	}
	s.uses.Suspend(t.box.ID)
	if err := s.Fault("pause.recorded"); err != nil {
		return t.box, err
	}
	stopped := s.stopClock(ctx, box, &t.box)
	if err = box.Pause(ctx); err != nil && stopped && t.box.Spec.Lifetime.HardTimeout() > 0 {
		s.Report(ctx, box.SetDeadline(context.WithoutCancel(ctx), t.box.Expires))
	}
	if err := s.Fault("pause.done"); err != nil {
		return t.box, err
	}
	return s.leave(ctx, t, intent, err, func(b *store.Sandbox) {
		b.State, b.Reason, b.Rest = sandbox.Paused, "", store.Rest{Pause: sandbox.PauseMemory, Wakes: wakes}
		if stopped {
			s.holdClock(b)
		}
	}, nil)
}

// Flush stores what the recordings of a sandbox have until now.
func (s *pauser) Flush(ctx context.Context, id sandbox.ID) { s.Recordings.Flush(ctx, id) }

// stopClock stops the provider's lifetime of a sandbox that is about to be
// paused, and reports whether it did. Some providers cannot.
func (s *pauser) stopClock(ctx context.Context, box *control.Sandbox, b *store.Sandbox) bool {
	switch {
	case b.Expires.IsZero():
		return false
	case b.Spec.Lifetime.HardTimeout() == 0:
		return true // the daemon enforces the lifetime
	case !control.Can[driver.DeadlineSetter](box):
		return false
	}
	return box.SetDeadline(ctx, time.Time{}) == nil
}

// holdClock stops the lifetime in a record.
func (s *pauser) holdClock(b *store.Sandbox) {
	if b.Expires.IsZero() {
		return
	}
	left := b.Expires.Sub(s.Store.Now())
	if left <= 0 && b.Spec.Lifetime.TimeoutAction != "" {
		left = anotherLife
	}
	b.Rest.Left, b.Expires = max(left, 1), time.Time{}
}

// anotherLife is the lifetime of a sandbox that runs again after it was put to
// disk because its time was over, unless another one is set.
const anotherLife = 5 * time.Minute

// runs sets the record of a sandbox to running; its lifetime continues.
func (s *pauser) runs(b *store.Sandbox, reason string) {
	if b.Rest.Left > 0 {
		b.Expires = s.Store.Now().Add(b.Rest.Left)
	}
	b.State, b.Reason, b.Rest, b.Exit, b.Active = sandbox.Running, reason, store.Rest{}, nil, s.Store.Now()
}

// thaw resumes a sandbox from memory.
func (s *pauser) thaw(ctx context.Context, t *operation) (store.Sandbox, error) {
	box, err := s.attach(ctx, &t.box)
	if err != nil {
		return t.box, err
	}
	intent, err := s.enter(ctx, t, func(b *store.Sandbox) { b.State, b.Rest.Step = sandbox.Resuming, stepResume }, nil)
	if err != nil {
		return t.box, err
	}
	if err := s.Fault("resume.recorded"); err != nil {
		return t.box, err
	}
	if left := t.box.Rest.Left; left > 0 && t.box.Spec.Lifetime.HardTimeout() > 0 {
		err = box.SetDeadline(ctx, s.Store.Now().Add(left))
	}
	if err == nil {
		err = box.Resume(ctx)
	}
	if err := s.Fault("resume.done"); err != nil {
		return t.box, err
	}
	return s.leave(ctx, t, intent, err, func(b *store.Sandbox) { s.runs(b, "") }, nil)
}

// away describes how a sandbox is put to disk.
type away struct {
	step   string
	memory bool // with memory and processes
	state  sandbox.State
	pause  sandbox.PauseKind
	wakes  bool
}

// putAway writes a snapshot of a sandbox and ends it. The provider ends it when
// the snapshot is complete.
func (s *pauser) putAway(ctx context.Context, t *operation, how away) (store.Sandbox, error) {
	box, err := s.attach(ctx, &t.box)
	if err != nil {
		return t.box, err
	}
	if !s.keeps(&t.box, box) {
		return t.box, snapshots.CannotKeep(&t.box)
	}
	s.Flush(ctx, t.box.ID)
	if err := s.Workspaces.Save(ctx, t.box.ID, "the sandbox "+t.box.Name+" was put to disk"); err != nil {
		return t.box, err
	}
	id := snapshots.NewID()
	intent, err := s.enter(ctx, t, func(b *store.Sandbox) {
		b.State, b.Rest.Step, b.Rest.Kept, b.Rest.Wakes = sandbox.Pausing, how.step, id, how.wakes
	}, func(tx *store.Tx) error {
		_, err := tx.Snapshots().Create(ctx, t.box.Tenant, snapshots.Describe(&t.box, store.Snapshot{Snapshot: sandbox.Snapshot{ID: id, Memory: how.memory}, Owner: t.box.ID}))
		return err
	})
	if err != nil {
		return t.box, err
	}
	s.uses.Suspend(t.box.ID)
	if err := s.Fault(how.step + ".recorded"); err != nil {
		return t.box, err
	}
	snap, err := s.writeDown(ctx, t, box, driver.SnapshotOptions{ID: id, Memory: how.memory, Stop: true})
	if err != nil {
		return s.undoAway(ctx, t, intent, id, err)
	}
	// The sandbox has ended, so this must be completed.
	late := context.WithoutCancel(ctx)
	if err := s.Fault(how.step + ".kept"); err != nil {
		return t.box, err
	}
	s.Report(ctx, s.end(late, &t.box))
	return s.leave(late, t, intent, nil, func(b *store.Sandbox) {
		s.setResting(b, how, id)
		if how.pause != "" && snap.Ref.Kind != driver.SnapshotMemory {
			b.Reason = reasonFilesOnly
		}
	}, func(ctx context.Context, tx *store.Tx) error {
		return tx.Snapshots().Finish(ctx, t.box.Tenant, id, snapshots.Taken(snap))
	})
}

func unsupported(b *store.Sandbox, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: b.Name, Message: message, Hint: hint}
}

// writeDown writes a snapshot of a sandbox. A sandbox that is paused in memory
// is resumed for that.
func (s *pauser) writeDown(ctx context.Context, t *operation, box *control.Sandbox, opts driver.SnapshotOptions) (snap driver.Snapshot, err error) {
	if t.box.State == sandbox.Paused {
		if err := box.Resume(ctx); err != nil {
			return snap, err
		}
	}
	return box.Snapshot(ctx, opts)
}

// undoAway records that a sandbox could not be put to disk and is running or
// paused as before.
func (s *pauser) undoAway(ctx context.Context, t *operation, intent *audit.Intent, id string, failed error) (store.Sandbox, error) {
	if t.box.State == sandbox.Paused {
		if box, err := s.attach(ctx, &t.box); err == nil {
			s.Report(ctx, box.Pause(context.WithoutCancel(ctx)))
		}
	}
	b, err := s.leave(ctx, t, intent, failed, nil, nil)
	late := store.WithReserve(context.WithoutCancel(ctx))
	s.Report(ctx, s.Store.Update(late, func(tx *store.Tx) error { return tx.Snapshots().Delete(late, t.box.Tenant, id) }))
	return b, err
}

const reasonFilesOnly = "only its files are kept, because its provider keeps no memory"

// setResting sets the record of a sandbox to paused or stopped on disk.
func (s *pauser) setResting(b *store.Sandbox, how away, id string) {
	left := b.Rest.Left
	b.State, b.Reason, b.Exit = how.state, "", nil
	b.Rest = store.Rest{Pause: how.pause, Kept: id, Wakes: how.wakes, Left: left}
	s.holdClock(b)
}

// bring runs a sandbox that is on disk, with its saved memory unless filesOnly
// is set. The saved state is removed once the sandbox is running.
func (s *pauser) bring(ctx context.Context, t *operation, step string, filesOnly bool) (store.Sandbox, error) {
	be, err := s.Providers.Of(ctx, &t.box)
	if err != nil {
		return t.box, err
	}
	ask, err := s.again(ctx, &t.box)
	if err != nil {
		return t.box, err
	}
	ask.Has = be.Isolation(ctx) // the provider may give less than before
	p, err := s.fitted(ctx, be, t.action, ask)
	if err != nil {
		return t.box, err
	}
	if p.Hidden, err = s.Secrets.Environment(ctx, &t.box); err != nil {
		return t.box, err
	}
	if p, err = s.Workspaces.Mount(ctx, p, be.Facts); err != nil {
		return t.box, err
	}
	p.FilesOnly = filesOnly
	id := t.box.Rest.Kept
	ref, err := s.Snapshots.Kept(ctx, be, &t.box)
	if err != nil {
		return t.box, err
	}
	leave, err := s.admitted(ctx, be, t.box.Tenant)
	if err != nil {
		return t.box, err
	}
	defer leave()
	if _, err := s.Ports.Reserve(t.box.Tenant, t.box.ID, t.box.Name, t.box.Spec.Ports); err != nil {
		return t.box, err
	}
	intent, err := s.enter(ctx, t, func(b *store.Sandbox) {
		b.State, b.Rest.Step, b.Rest.Pause = sandbox.Resuming, step, ""
	}, nil)
	if err != nil {
		s.Ports.Sync(&t.box)
		return t.box, err
	}
	if err := s.Fault(step + ".recorded"); err != nil {
		return t.box, err
	}
	box, how, err := be.Control.Restore(ctx, p, ref)
	if err := s.Fault(step + ".made"); err != nil {
		return t.box, err
	}
	b, err := s.leave(ctx, t, intent, err, func(b *store.Sandbox) {
		s.runs(b, coldReason(how))
		b.Isolation = ask.Has
	}, func(ctx context.Context, tx *store.Tx) error {
		return tx.Snapshots().Delete(ctx, t.box.Tenant, id)
	})
	if err != nil {
		return b, err
	}
	s.followAnew(b.Tenant, box)
	s.Snapshots.Drop(ctx, b.Provider, id)
	switch {
	case b.Spec.Main == nil:
	case how.Memory:
		s.Go(func() { s.Exec.WatchBackground(b.Tenant, box) })
	default:
		err = s.startMain(ctx, &b, control.ImageConfig{})
	}
	return b, err
}

// coldReason returns why a sandbox was started from its files only although its
// memory had been saved.
func coldReason(how driver.Restored) string {
	if how.Memory || how.Why == "" {
		return ""
	}
	return "it started from its files: " + how.Why
}
