// Package access reads and opens sandboxes, for their owners and for requests
// with the token of a sandbox.
package access

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/inuse"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const opWake = ops.SandboxWake

// Opener opens sandboxes, and wakes sleeping ones. The caller fills in the
// fields.
type Opener struct {
	Core    *core.Core
	Records *records.Records
	Pauser  Pauser
}

// Pauser resumes sandboxes. Package pause implements it.
type Pauser interface {
	ResumeLocked(ctx context.Context, t *records.Operation) (store.Sandbox, error)
}

// Use returns a running sandbox for package exec.
func (s *Opener) Use(ctx context.Context, ref string) (u exec.Use, err error) {
	const op = ops.SandboxFind
	if u.Who, err = s.Core.Look(ctx, op, ref); err != nil {
		return u, err
	}
	seen := s.Records.Uses.Mark()
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
	u.Sandbox = u.Inner.Guarded(s.Core.Act) // every operation passes the guard
	return u, nil
}

// findToUse is Records.Find for running commands. It also returns the tenant's
// limits.
func (s *Opener) findToUse(ctx context.Context, tenant, ref string) (b store.Sandbox, l operator.Limits, err error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return b, l, err
	}
	err = s.Core.Store.View(ctx, func(tx *store.Tx) error {
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
func (s *Opener) occupy(ctx context.Context, id sandbox.ID) error {
	closing, leave := s.Records.Uses.Begin(id, s.Core.Store.Now)
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
func (s *Opener) reach(ctx context.Context, b store.Sandbox, seen inuse.Mark) (_ store.Sandbox, sb *engine.Sandbox, err error) {
	for range maxChanges {
		if between(b.State) || s.Records.Uses.SuspendedSince(b.ID, seen) {
			seen = s.Records.Uses.Mark()
			if b, err = s.Records.Quiet(ctx, &b); err != nil {
				return b, nil, err
			}
		}
		verdict, err := lifecycle.Decide(records.View(&b), lifecycle.Use)
		if err == nil && verdict == lifecycle.Wake {
			b, err = s.wake(ctx, &b)
		}
		if err != nil {
			return b, nil, err
		}
		if sb, err = s.Records.AttachSettled(ctx, &b); err != nil || sb != nil && !s.Records.Uses.SuspendedSince(b.ID, seen) {
			return b, sb, err
		}
	}
	return b, nil, &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: "the state of the sandbox keeps changing", Hint: "try again"}
}

// maxChanges limits how many changes of a sandbox's state reach waits for.
const maxChanges = 10

// between reports whether a state is transitional.
func between(s sandbox.State) bool { return s == sandbox.Pausing || s == sandbox.Resuming }

// wake resumes a sandbox that was paused by its idle policy.
func (s *Opener) wake(ctx context.Context, b *store.Sandbox) (store.Sandbox, error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return *b, err
	}
	a := core.ActionOf(who, engine.Action{Op: opWake, Sandbox: b.ID, Name: b.Name, Subject: b.Name})
	t, err := s.Records.LockID(ctx, b.Tenant, b.ID, a, lifecycle.Resume)
	if err != nil {
		return *b, err
	}
	defer t.Release()
	if t.Verdict == lifecycle.Done {
		return t.Sandbox, nil // another caller was faster
	}
	return s.Pauser.ResumeLocked(ctx, t)
}
