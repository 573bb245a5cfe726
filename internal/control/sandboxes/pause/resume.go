package pause

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Resume resumes a paused sandbox. It succeeds if the sandbox is running.
func (s *Pauser) Resume(ctx context.Context, ref string) (_ store.Sandbox, err error) {
	defer core.Name(opResume, &err)
	t, err := s.Records.Lock(ctx, ref, opResume, lifecycle.Resume)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.Release()
	if t.Verdict == lifecycle.Done {
		return t.Sandbox, nil
	}
	return s.ResumeLocked(ctx, t)
}

// ResumeLocked resumes a sandbox that the caller has locked.
func (s *Pauser) ResumeLocked(ctx context.Context, t *records.Operation) (store.Sandbox, error) {
	if t.Sandbox.Rest.Pause == sandbox.PauseDisk {
		return s.bring(ctx, t, records.StepResume, false)
	}
	return s.thaw(ctx, t)
}

// Reboot runs a paused or stopped sandbox again with its files, without its
// processes. It succeeds if the sandbox is running.
func (s *Pauser) Reboot(ctx context.Context, ref string) (_ store.Sandbox, err error) {
	defer core.Name(opResume, &err)
	b, err := s.Records.Get(ctx, ref)
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
	t, err := s.Records.Lock(ctx, ref, opResume, lifecycle.Resume)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.Release()
	if t.Verdict == lifecycle.Done {
		return t.Sandbox, nil
	}
	if t.Sandbox.Rest.Pause != sandbox.PauseDisk { // another operation was faster
		return t.Sandbox, &sandbox.Error{Code: sandbox.CodeConflict, Subject: t.Sandbox.Name, Message: "the sandbox has meanwhile been paused in another way", Hint: "try again"}
	}
	return s.bring(ctx, t, records.StepResume, true)
}

// Start starts a stopped sandbox again with its files. It succeeds if the
// sandbox is running.
func (s *Pauser) Start(ctx context.Context, ref string) (_ store.Sandbox, err error) {
	defer core.Name(opStart, &err)
	t, err := s.Records.Lock(ctx, ref, opStart, lifecycle.Start)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.Release()
	b := t.Sandbox
	switch {
	case t.Verdict != lifecycle.Done:
		b, err = s.bring(ctx, t, records.StepStart, false)
	case b.Spec.Main != nil && b.Exit != nil:
		err = s.Mains.Start(ctx, &b, engine.ImageConfig{})
	}
	return b, err
}

// thaw resumes a sandbox from memory.
func (s *Pauser) thaw(ctx context.Context, t *records.Operation) (store.Sandbox, error) {
	sb, err := s.Records.Attach(ctx, &t.Sandbox)
	if err != nil {
		return t.Sandbox, err
	}
	intent, err := s.Records.Enter(ctx, t, func(b *store.Sandbox) { b.State, b.Rest.Step = sandbox.Resuming, records.StepResume }, nil)
	if err != nil {
		return t.Sandbox, err
	}
	if err := s.Core.Fault("resume.recorded"); err != nil {
		return t.Sandbox, err
	}
	if left := t.Sandbox.Rest.Left; left > 0 && t.Sandbox.Spec.Lifetime.HardTimeout() > 0 {
		err = sb.SetDeadline(ctx, s.Core.Store.Now().Add(left))
	}
	if err == nil {
		err = sb.Resume(ctx)
	}
	if err := s.Core.Fault("resume.done"); err != nil {
		return t.Sandbox, err
	}
	return s.Records.Leave(ctx, t, intent, err, func(b *store.Sandbox) { s.Records.SetRunning(b, "") }, nil)
}

// bring runs a sandbox that is on disk, with its saved memory unless filesOnly
// is set. The saved state is removed once the sandbox is running.
func (s *Pauser) bring(ctx context.Context, t *records.Operation, step string, filesOnly bool) (store.Sandbox, error) {
	be, err := s.Providers.Of(ctx, &t.Sandbox)
	if err != nil {
		return t.Sandbox, err
	}
	ask, err := s.Prepare.Again(ctx, &t.Sandbox)
	if err != nil {
		return t.Sandbox, err
	}
	ask.Has = be.Isolation(ctx) // the provider may give less than before
	p, err := s.Prepare.Fit(ctx, be, t.Action, ask)
	if err != nil {
		return t.Sandbox, err
	}
	if p.Hidden, err = s.Secrets.Environment(ctx, &t.Sandbox); err != nil {
		return t.Sandbox, err
	}
	if p, err = s.Workspaces.Mount(ctx, p, be.Facts); err != nil {
		return t.Sandbox, err
	}
	p.FilesOnly = filesOnly
	id := t.Sandbox.Rest.Kept
	ref, err := s.Snapshots.Kept(ctx, be, &t.Sandbox)
	if err != nil {
		return t.Sandbox, err
	}
	leave, err := s.Prepare.Admit(ctx, be, t.Sandbox.Tenant)
	if err != nil {
		return t.Sandbox, err
	}
	defer leave()
	if _, err := s.Ports.Reserve(t.Sandbox.Tenant, t.Sandbox.ID, t.Sandbox.Name, t.Sandbox.Spec.Ports); err != nil {
		return t.Sandbox, err
	}
	intent, err := s.Records.Enter(ctx, t, func(b *store.Sandbox) {
		b.State, b.Rest.Step, b.Rest.Pause = sandbox.Resuming, step, ""
	}, nil)
	if err != nil {
		s.Ports.Sync(&t.Sandbox)
		return t.Sandbox, err
	}
	if err := s.Core.Fault(step + ".recorded"); err != nil {
		return t.Sandbox, err
	}
	sb, how, err := be.Engine.Restore(ctx, p, ref)
	if err := s.Core.Fault(step + ".made"); err != nil {
		return t.Sandbox, err
	}
	b, err := s.Records.Leave(ctx, t, intent, err, func(b *store.Sandbox) {
		s.Records.SetRunning(b, records.ColdReason(how))
		b.Isolation = ask.Has
	}, func(ctx context.Context, tx *store.Tx) error {
		return tx.Snapshots().Delete(ctx, t.Sandbox.Tenant, id)
	})
	if err != nil {
		return b, err
	}
	s.Ends.FollowAnew(b.Tenant, sb)
	s.Snapshots.Drop(ctx, b.Provider, id)
	switch {
	case b.Spec.Main == nil:
	case how.Memory:
		s.Core.Go(func() { s.Exec.WatchBackground(b.Tenant, sb) })
	default:
		err = s.Mains.Start(ctx, &b, engine.ImageConfig{})
	}
	return b, err
}
