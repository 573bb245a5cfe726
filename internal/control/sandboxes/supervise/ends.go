// Package supervise watches running sandboxes: when one ends, and when its main
// command ends.
package supervise

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Ends waits for the ends of sandboxes. The caller fills in the fields.
type Ends struct {
	Core    *core.Core
	Records *records.Records
	Exec    Background

	watched sync.Map // sandbox.ID → *watcher: the goroutine that waits for its end
}

// Background watches the background commands of a sandbox.
type Background interface {
	WatchBackground(tenant string, sb *engine.Sandbox)
}

// Wait waits until a sandbox has ended, and returns the reason.
func (s *Ends) Wait(ctx context.Context, ref string) (_ sandbox.Exit, err error) {
	defer core.Name(ops.SandboxWait, &err)
	who, err := s.Core.Look(ctx, ops.SandboxWait, ref)
	if err != nil {
		return sandbox.Exit{}, err
	}
	b, err := s.Records.Find(ctx, who.Tenant, ref)
	if err != nil {
		return sandbox.Exit{}, err
	}
	if err := s.Records.Inflight.Wait(ctx, b.ID); err != nil {
		return sandbox.Exit{}, err
	}
	if b, err = s.Records.Record(ctx, who.Tenant, b.ID); err != nil {
		return sandbox.Exit{}, err
	}
	if b.Exit != nil {
		return *b.Exit, nil
	}
	if exit, over := exitOf(&b); over {
		return exit, nil
	}
	return s.waitEnd(ctx, b)
}

// waitEnd waits for the end of a sandbox. A sandbox that is paused to disk has
// not ended.
func (s *Ends) waitEnd(ctx context.Context, b store.Sandbox) (exit sandbox.Exit, err error) {
	for {
		if b.Rest.Kept == "" {
			life, _ := s.watched.Load(b.ID)
			sb, err := s.Records.AttachSettled(ctx, &b)
			if err != nil {
				return exit, err
			}
			if sb == nil { // an operation has ended it, or put it to disk
				if exit, over := exitOf(&b); over {
					return exit, nil
				}
				continue
			}
			if exit, err = sb.Wait(ctx); err != nil {
				return exit, err
			}
			if b, err = s.Records.Quiet(ctx, &b); err != nil {
				return exit, err
			}
			now, _ := s.watched.Load(b.ID)
			if b.Rest.Kept == "" && (now == nil || now == life) || b.State == sandbox.Stopped {
				if b.State == sandbox.Gone && b.Reason == records.ReasonLifetime {
					exit.Reason = sandbox.ReasonLifetime // the provider was late, so the daemon removed it
				}
				return exit, nil
			}
		}
		select {
		case <-ctx.Done():
			return exit, ctx.Err()
		case <-time.After(waitPoll):
		}
		if b, err = s.Records.Quiet(ctx, &b); err != nil {
			return exit, err
		}
		if exit, over := exitOf(&b); over {
			return exit, nil
		}
	}
}

// exitOf returns how a sandbox ended, if it has.
func exitOf(b *store.Sandbox) (exit sandbox.Exit, over bool) {
	switch {
	case b.Exit != nil && (b.State == sandbox.Gone || b.State == sandbox.Stopped || b.State == sandbox.Failed):
		return *b.Exit, true
	case b.State == sandbox.Gone || b.State == sandbox.Stopped:
		return records.ExitOf(b), true
	}
	return exit, false
}

// waitPoll is the interval at which waitEnd checks whether a sandbox on disk is
// running again.
const waitPoll = time.Second

// watcher is a goroutine that waits until a sandbox ends or is put to disk.
type watcher struct{ sandbox *engine.Sandbox }

// Refind follows a sandbox that this daemon did not create, or had lost.
func (s *Ends) Refind(tenant string, sb *engine.Sandbox) {
	if _, known := s.watched.Load(sb.ID()); !known {
		s.Core.Go(func() { s.Exec.WatchBackground(tenant, sb) })
	}
	s.Follow(tenant, sb)
}

// Follow waits for the end of a sandbox in the background, and records it.
func (s *Ends) Follow(tenant string, sb *engine.Sandbox) {
	w := &watcher{sb}
	if _, twice := s.watched.LoadOrStore(sb.ID(), w); !twice {
		s.await(tenant, w)
	}
}

// FollowAnew is follow for a sandbox that runs again. It replaces the watcher
// of its former run.
func (s *Ends) FollowAnew(tenant string, sb *engine.Sandbox) {
	w := &watcher{sb}
	s.watched.Store(sb.ID(), w)
	s.await(tenant, w)
}

func (s *Ends) await(tenant string, w *watcher) {
	s.Core.Go(func() {
		defer s.watched.CompareAndDelete(w.sandbox.ID(), w)
		exit, err := w.sandbox.Wait(s.Core.Life)
		if err != nil {
			return // the daemon is stopping, or the sandbox is lost; Reconcile finds out which
		}
		s.Core.Report(s.Core.Life, s.ended(tenant, w, exit))
	})
}

// ended records that a sandbox ended without a request. An expired one is
// removed; others are kept so that the owner can see the reason.
func (s *Ends) ended(tenant string, w *watcher, exit sandbox.Exit) error {
	id := w.sandbox.ID()
	ctx, cancel := context.WithTimeout(s.Core.Life, records.FinalizeTimeout)
	defer cancel()
	release, err := s.Records.Locks.Take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	b, err := s.Records.Record(ctx, tenant, id)
	if err != nil || b.State == sandbox.Gone || b.Rest.Kept != "" {
		return err // the operation that ended it records that
	}
	if now, _ := s.watched.Load(id); now != w {
		return nil // it is running again
	}
	if exit.Reason == sandbox.ReasonLifetime {
		if err := s.Records.End(ctx, &b); err != nil {
			return err
		}
		return s.Records.Observe(ctx, &b, records.Found{State: sandbox.Gone, Reason: records.ReasonLifetime, Exit: &exit})
	}
	state := sandbox.Failed
	switch exit.Reason {
	case sandbox.ReasonExited:
		state = sandbox.Stopped
	case sandbox.ReasonKilled:
		return nil // the operation that removed it records that
	}
	return s.Records.Observe(ctx, &b, records.Found{State: state, Reason: "it ended: " + string(exit.Reason), Exit: &exit})
}
