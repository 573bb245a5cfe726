package expire

import (
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	// reapPeriod is the interval at which idle sandboxes are looked for.
	reapPeriod = time.Second
	reapBatch  = 100
	opIdle     = ops.SandboxIdle
)

// WatchIdle applies idle policies until ctx ends.
func (s *Expirer) WatchIdle(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reapPeriod):
			if err := s.reap(ctx); err != nil && ctx.Err() == nil {
				s.Core.Report(ctx, err)
			}
		}
	}
}

// reap checks all sandboxes once.
func (s *Expirer) reap(ctx context.Context) error {
	idle, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) ([]store.Sandbox, error) {
		return tx.Operator().Idle(ctx, s.Core.Node, reapBatch)
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, b := range idle {
		failed = append(failed, s.rest(ctx, b))
	}
	return errors.Join(failed...)
}

// rest applies the idle policy of a sandbox that, according to the store, is
// idle.
func (s *Expirer) rest(ctx context.Context, b store.Sandbox) error {
	now := s.Core.Store.Now()
	reopen, last, ok := s.Records.Uses.Close(b.ID, now.Add(-b.Idle.After), now)
	if !ok {
		return s.touch(ctx, &b, last)
	}
	defer reopen()
	if b.Active.After(now) {
		return s.touch(ctx, &b, now) // the clock was set back: restart the idle time
	}
	a := audit.Action{Tenant: b.Tenant, Op: opIdle, Sandbox: b.ID, Name: b.Name, Subject: b.Idle.Action}
	t, err := s.Records.LockID(ctx, b.Tenant, b.ID, a, lifecycle.Pause)
	if err != nil {
		return records.IgnoreGone(err)
	}
	defer t.Release()
	if t.Verdict == lifecycle.Done || t.Sandbox.Idle != b.Idle {
		return nil // it was changed meanwhile
	}
	busy, err := s.busy(ctx, t)
	if err != nil || busy {
		return errors.Join(err, s.touch(ctx, &b, now))
	}
	if err := s.goIdle(ctx, t); err != nil {
		// Retry later, not every second.
		return errors.Join(err, s.touch(ctx, &b, now))
	}
	return nil
}

func (s *Expirer) touch(ctx context.Context, b *store.Sandbox, at time.Time) error {
	return records.IgnoreGone(s.Core.Store.Update(ctx, func(tx *store.Tx) error { return tx.Sandboxes().Touch(ctx, b.Tenant, b.ID, at) }))
}

// busy reports whether a command started through the API is still running.
func (s *Expirer) busy(ctx context.Context, t *records.Operation) (bool, error) {
	sb, err := s.Records.Attach(ctx, &t.Sandbox)
	if err != nil {
		return false, err
	}
	all, err := sb.Processes(ctx)
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		return false, nil
	}
	for _, c := range all {
		if c.Running {
			return true, err
		}
	}
	return false, err
}

// goIdle applies the idle action, or the closest one that the provider
// supports.
func (s *Expirer) goIdle(ctx context.Context, t *records.Operation) error {
	sb, err := s.Records.Attach(ctx, &t.Sandbox)
	if err != nil {
		return err
	}
	action, disk := sandbox.IdleAction(t.Sandbox.Idle.Action), s.Pauser.Keeps(&t.Sandbox, sb)
	switch {
	case action == sandbox.IdleDelete:
		return s.Remover.Remove(ctx, &t.Sandbox, t.Action, records.ReasonIdle)
	case action == sandbox.IdleStop && !disk:
		return records.Unsupported(&t.Sandbox, "it is idle and cannot be stopped without losing its files", "let its idle action be delete")
	case action == sandbox.IdleStop:
		_, err = s.Pauser.StopLocked(ctx, t)
	case action == sandbox.IdleSleep && disk && s.Pauser.HasMemory(ctx, &t.Sandbox):
		err = s.Pauser.PutToSleep(ctx, t, true)
	case engine.Can[driver.Pauser](sb):
		// Without memory in snapshots, pausing to disk would end its processes.
		_, err = s.Pauser.PauseLocked(ctx, t, false, true)
	default:
		return records.Unsupported(&t.Sandbox, "it is idle, and this provider cannot pause", "let its idle action be stop or delete")
	}
	return err
}
