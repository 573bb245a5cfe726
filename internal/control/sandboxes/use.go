package sandboxes

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Use returns a running sandbox for package exec.
func (s *users) Use(ctx context.Context, ref string) (u exec.Use, err error) {
	const op = ops.SandboxFind
	if u.Who, err = s.Look(ctx, op, ref); err != nil {
		return u, err
	}
	b, limits, err := s.findToUse(ctx, u.Who.Tenant, ref)
	if err == nil {
		err = u.Who.AllowIn(b.ID, op)
	}
	if err == nil {
		b, err = s.occupy(ctx, b)
	}
	if err != nil {
		return u, core.Named(op, err)
	}
	verdict, err := lifecycle.Decide(view(&b), lifecycle.Use)
	if err == nil && verdict == lifecycle.Wake {
		b, err = s.wake(ctx, &b)
	}
	if err != nil {
		return u, core.Named(op, err)
	}
	u.Record, u.Limits = b, limits
	if u.Inner, err = s.attach(ctx, &b); err != nil {
		return u, err
	}
	u.Sandbox = s.handle(u.Inner)
	return u, nil
}

// findToUse is find for running commands. It also returns the tenant's limits.
func (s *users) findToUse(ctx context.Context, tenant, ref string) (b store.Sandbox, l sandbox.Limits, err error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return b, l, err
	}
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		if b, err = tx.Sandboxes().Lookup(ctx, tenant, ref); err != nil {
			return err
		}
		t, err := tx.Tenants().Get(ctx, tenant)
		l = t.Limits
		return err
	})
	return b, l, err
}

// occupy marks a sandbox as in use until ctx ends, waits for state changes in
// progress, and returns the record after them.
func (s *users) occupy(ctx context.Context, b store.Sandbox) (store.Sandbox, error) {
	closing, leave := s.uses.begin(b.ID, s.Store.Now)
	span.AtEnd(ctx, leave)
	if closing != nil {
		select {
		case <-closing:
		case <-ctx.Done():
			return b, ctx.Err()
		}
	}
	if b.Idle.After == 0 && closing == nil && !between(b.State) {
		return b, nil // the state can no longer change
	}
	b, err := s.record(ctx, b.Tenant, b.ID)
	for range maxChanges {
		if err != nil || !between(b.State) {
			break
		}
		b, err = s.quiet(ctx, &b)
	}
	return b, err
}

// maxChanges limits how many state changes occupy waits for.
const maxChanges = 10

// between reports whether a state is transitional.
func between(s sandbox.State) bool { return s == sandbox.Pausing || s == sandbox.Resuming }

// wake resumes a sandbox that was paused by its idle policy.
func (s *users) wake(ctx context.Context, b *store.Sandbox) (store.Sandbox, error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return *b, err
	}
	a := actionOf(who, control.Action{Op: opWake, Sandbox: b.ID, Name: b.Name, Subject: b.Name})
	t, err := s.lockID(ctx, b.Tenant, b.ID, a, lifecycle.Resume)
	if err != nil {
		return *b, err
	}
	defer t.release()
	if t.verdict == lifecycle.Done {
		return t.box, nil // another caller was faster
	}
	return s.rests.resume(ctx, t)
}

// uses are the sandboxes that are in use, or have been since the daemon
// started. The zero value is ready to use.
type uses struct {
	mu    sync.Mutex
	boxes map[sandbox.ID]*use
}

type use struct {
	open    int       // number of open handles
	last    time.Time // when a handle was last opened or closed
	closing chan struct{}
}

func (u *uses) get(id sandbox.ID) *use {
	if u.boxes == nil {
		u.boxes = map[sandbox.ID]*use{}
	}
	if u.boxes[id] == nil {
		u.boxes[id] = &use{}
	}
	return u.boxes[id]
}

// begin counts a use until leave is called. If the sandbox is being paused,
// closing is closed when that is over.
func (u *uses) begin(id sandbox.ID, now func() time.Time) (closing <-chan struct{}, leave func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.get(id)
	b.open++
	b.last = now()
	return b.closing, sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		b.open--
		b.last = now()
	})
}

// close begins to pause a sandbox that was not used since a time: new uses wait
// until reopen is called. If the sandbox is in use or was used since, close
// returns false and the time of the last use, which is now for a current use.
func (u *uses) close(id sandbox.ID, since, now time.Time) (reopen func(), last time.Time, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.get(id)
	if b.last.After(now) {
		b.last = now // the clock was set back
	}
	switch {
	case b.open > 0 || b.closing != nil:
		return nil, now, false
	case b.last.After(since):
		return nil, b.last, false
	}
	closing := make(chan struct{})
	b.closing = closing
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		b.closing = nil
		close(closing)
	}, b.last, true
}

// forget removes a sandbox that is gone.
func (u *uses) forget(id sandbox.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if b := u.boxes[id]; b != nil && b.open == 0 && b.closing == nil {
		delete(u.boxes, id)
	}
}

// handle returns a handle on which every operation passes the guard.
func (s *records) handle(box *control.Sandbox) *control.Sandbox { return box.Guarded(s.Act) }
