package sandboxes

import (
	"context"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/inuse"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Use returns a running sandbox for package exec.
func (s *opener) Use(ctx context.Context, ref string) (u exec.Use, err error) {
	const op = ops.SandboxFind
	if u.Who, err = s.Look(ctx, op, ref); err != nil {
		return u, err
	}
	seen := s.uses.Mark()
	if u.Record, u.Limits, err = s.findToUse(ctx, u.Who.Tenant, ref); err == nil {
		err = u.Who.AllowIn(u.Record.ID, op)
	}
	if err == nil {
		err = s.occupy(ctx, u.Record.ID)
	}
	if err == nil {
		u.Record, u.Inner, err = s.reach(ctx, u.Record, seen)
	}
	if err != nil {
		return u, core.Named(op, err)
	}
	u.Sandbox = s.handle(u.Inner)
	return u, nil
}

// findToUse is find for running commands. It also returns the tenant's limits.
func (s *opener) findToUse(ctx context.Context, tenant, ref string) (b store.Sandbox, l sandbox.Limits, err error) {
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

// occupy marks a sandbox as in use until ctx ends. If its idle policy is being
// applied, occupy waits until that is over.
func (s *opener) occupy(ctx context.Context, id sandbox.ID) error {
	closing, leave := s.uses.Begin(id, s.Store.Now)
	span.AtEnd(ctx, leave)
	if closing == nil {
		return nil
	}
	select {
	case <-closing:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reach returns a handle on a sandbox in use, and its record. A sandbox that
// was paused in a way that lets it wake is resumed. seen is a mark from before
// the record b was read: if the sandbox is paused, stopped or removed at the
// same time, reach waits for that and decides again.
func (s *opener) reach(ctx context.Context, b store.Sandbox, seen inuse.Mark) (_ store.Sandbox, box *control.Sandbox, err error) {
	for range maxChanges {
		if between(b.State) || s.uses.SuspendedSince(b.ID, seen) {
			seen = s.uses.Mark()
			if b, err = s.quiet(ctx, &b); err != nil {
				return b, nil, err
			}
		}
		verdict, err := lifecycle.Decide(view(&b), lifecycle.Use)
		if err == nil && verdict == lifecycle.Wake {
			b, err = s.wake(ctx, &b)
		}
		if err != nil {
			return b, nil, err
		}
		if box, err = s.attachSettled(ctx, &b); err != nil || box != nil && !s.uses.SuspendedSince(b.ID, seen) {
			return b, box, err
		}
	}
	return b, nil, &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: "the state of the sandbox keeps changing", Hint: "try again"}
}

// attachSettled is attach. If the sandbox is not there because an operation has
// ended it, attachSettled waits for that operation, updates the record and
// returns neither a handle nor an error.
func (s *opener) attachSettled(ctx context.Context, b *store.Sandbox) (*control.Sandbox, error) {
	if err := s.here(ctx, b); err != nil {
		return nil, err
	}
	box, err := s.Providers.Attach(ctx, b)
	if sandbox.CodeOf(err) != sandbox.CodeGone {
		return box, err
	}
	now, err := s.quiet(ctx, b)
	if err != nil {
		return nil, err
	}
	if now.Version == b.Version {
		return s.attach(ctx, b) // no operation has ended it: record that it is gone
	}
	*b = now
	return nil, nil
}

// maxChanges limits how many changes of a sandbox's state reach waits for.
const maxChanges = 10

// between reports whether a state is transitional.
func between(s sandbox.State) bool { return s == sandbox.Pausing || s == sandbox.Resuming }

// wake resumes a sandbox that was paused by its idle policy.
func (s *opener) wake(ctx context.Context, b *store.Sandbox) (store.Sandbox, error) {
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
	return s.pauser.resume(ctx, t)
}

// handle returns a handle on which every operation passes the guard.
func (s *records) handle(box *control.Sandbox) *control.Sandbox { return box.Guarded(s.Act) }
