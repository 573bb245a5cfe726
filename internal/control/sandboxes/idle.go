package sandboxes

import (
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
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
func (s *expirer) WatchIdle(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reapPeriod):
			if err := s.reap(ctx); err != nil && ctx.Err() == nil {
				s.Report(ctx, err)
			}
		}
	}
}

// reap checks all sandboxes once.
func (s *expirer) reap(ctx context.Context) error {
	idle, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Sandbox, error) {
		return tx.Operator().Idle(ctx, s.Node, reapBatch)
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
func (s *expirer) rest(ctx context.Context, b store.Sandbox) error {
	now := s.Store.Now()
	reopen, last, ok := s.uses.Close(b.ID, now.Add(-b.Idle.After), now)
	if !ok {
		return s.touch(ctx, &b, last)
	}
	defer reopen()
	if b.Active.After(now) {
		return s.touch(ctx, &b, now) // the clock was set back: restart the idle time
	}
	a := audit.Action{Tenant: b.Tenant, Op: opIdle, Sandbox: b.ID, Name: b.Name, Subject: b.Idle.Action}
	t, err := s.lockID(ctx, b.Tenant, b.ID, a, lifecycle.Pause)
	if err != nil {
		return ignoreGone(err)
	}
	defer t.release()
	if t.verdict == lifecycle.Done || t.box.Idle != b.Idle {
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

func (s *expirer) touch(ctx context.Context, b *store.Sandbox, at time.Time) error {
	return ignoreGone(s.Store.Update(ctx, func(tx *store.Tx) error { return tx.Sandboxes().Touch(ctx, b.Tenant, b.ID, at) }))
}

// busy reports whether a command started through the API is still running.
func (s *expirer) busy(ctx context.Context, t *operation) (bool, error) {
	box, err := s.attach(ctx, &t.box)
	if err != nil {
		return false, err
	}
	all, err := box.Processes(ctx)
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
func (s *expirer) goIdle(ctx context.Context, t *operation) error {
	box, err := s.attach(ctx, &t.box)
	if err != nil {
		return err
	}
	action, disk := sandbox.IdleAction(t.box.Idle.Action), s.pauser.keeps(&t.box, box)
	switch {
	case action == sandbox.IdleDelete:
		return s.remove(ctx, &t.box, t.action, reasonIdle)
	case action == sandbox.IdleStop && !disk:
		return unsupported(&t.box, "it is idle and cannot be stopped without losing its files", "let its idle action be delete")
	case action == sandbox.IdleStop:
		_, err = s.pauser.stopLocked(ctx, t)
	case action == sandbox.IdleSleep && disk && s.pauser.memory(ctx, &t.box):
		err = s.pauser.putToSleep(ctx, t, true)
	case control.Can[driver.Pauser](box):
		// Without memory in snapshots, pausing to disk would end its processes.
		_, err = s.pauser.pause(ctx, t, false, true)
	default:
		return unsupported(&t.box, "it is idle, and this provider cannot pause", "let its idle action be stop or delete")
	}
	return err
}
