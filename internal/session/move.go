package session

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/sandbox"
)

// Mover is what moving a session to another sandbox takes, besides Boxes.
type Mover interface {
	// Quiet waits until no request is under way in the sandbox that a lease names.
	// None begins while the lease is moving.
	Quiet(ctx context.Context, l lease.Lease) error
	// Settle saves the workspaces of a sandbox, which goes on.
	Settle(ctx context.Context, b Box) ([]sandbox.WorkspaceRef, error)
	// Carry makes sure that a new sandbox answers, and copies files to it that
	// did not come with its workspaces. lost names what does not go along.
	Carry(ctx context.Context, from, to Box) (lost []string, err error)
}

// Move has a warm session served by a new sandbox, which p describes, with the
// files of the present one. The pointer moves last: a failure before that leaves
// the present sandbox serving the session, and removes the new one. held is a
// holder that the caller has, which Move keeps. CodeStale: the sandbox was
// replaced by somebody else, or is being moved.
func (m *Manager) Move(ctx context.Context, p Plan, epoch int64, held lease.Heartbeat, by Mover) (Held, error) {
	l, err := m.depart(ctx, p.Group, epoch)
	if err != nil {
		return Held{}, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go m.renew(ctx, stop, l, held)
	old := Box{ID: l.Sandbox, Provider: l.Provider, Binding: l.Binding}
	p.Key, p.Replaces, p.Prior = m.cfg.Key(p.Group, l.Attempt), old.ID, nil
	b, receipt, err := m.transfer(ctx, p, l, old, by)
	if err == nil {
		receipt.Epoch, err = m.arrive(context.WithoutCancel(ctx), p, l, b)
	}
	if err != nil {
		return Held{}, m.stay(ctx, l, b, err)
	}
	// The reaper ends the old one by its key if this fails.
	m.cfg.Progress(p.Group, "ending "+string(old.ID))
	return Held{Box: b, Epoch: receipt.Epoch, Receipt: receipt}, notEnded(m.cfg.Boxes.Delete(context.WithoutCancel(ctx), old))
}

// depart begins to move a session: from then on no request begins in its sandbox.
func (m *Manager) depart(ctx context.Context, group string, epoch int64) (lease.Lease, error) {
	l, effect, err := m.cfg.Leases.Apply(ctx, group, lease.Depart{Epoch: epoch})
	if err == nil && !effect.Done {
		err = &sandbox.Error{Code: sandbox.CodeStale, Op: "session.swap", Subject: group, Message: "the sandbox was replaced, or the session is being moved or saved"}
	}
	return l, err
}

// Exclusive does something to the sandbox of a warm session while it serves no
// request: those that are under way end first, and others wait. quiet waits for
// the former; held is a holder that the caller has. Viewers keep it from being
// done, as CodeConflict.
func (m *Manager) Exclusive(ctx context.Context, group string, epoch int64, held lease.Heartbeat, quiet func(context.Context, lease.Lease) error, do func(context.Context) error) error {
	l, err := m.depart(ctx, group, epoch)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go m.renew(ctx, stop, l, held)
	if l.Count(lease.Viewer) > 0 {
		err = &sandbox.Error{Code: sandbox.CodeConflict, Op: "session.save", Subject: group, Message: "somebody views the sandbox, which has to pause", Hint: "try again when nobody does"}
	} else if err = quiet(ctx, l); err == nil {
		err = do(ctx)
	}
	return m.stay(ctx, l, Box{}, err)
}

// NotEnded is an error of Move after the session was moved: its former sandbox
// could not be ended yet.
type NotEnded struct{ Err error }

// Error implements error.
func (e *NotEnded) Error() string { return "the former sandbox was not ended: " + e.Err.Error() }

// Unwrap returns why.
func (e *NotEnded) Unwrap() error { return e.Err }

func notEnded(err error) error {
	if err == nil {
		return nil
	}
	return &NotEnded{err}
}

// renewEvery is how often a move is renewed at least: holders end after 90
// seconds.
const renewEvery = 20 * time.Second

// renew keeps a move and its holder until ctx ends, and ends it if it is not the
// present one any more.
func (m *Manager) renew(ctx context.Context, stop context.CancelCauseFunc, l lease.Lease, held lease.Heartbeat) {
	every := min(renewEvery, m.cfg.Patience/3)
	for m.cfg.Sleep(ctx, every) == nil {
		_, effect, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Depart{Epoch: l.Epoch, Attempt: l.Attempt})
		if err == nil && !effect.Done {
			stop(&sandbox.Error{Code: sandbox.CodeStale, Op: "session.swap", Subject: l.Group, Message: "the sandbox was replaced meanwhile"})
			return
		}
		_, _, _ = m.cfg.Leases.Apply(ctx, l.Group, held) // what matters is found out above
	}
}

// transfer makes the new sandbox, with the files of the old one.
func (m *Manager) transfer(ctx context.Context, p Plan, l lease.Lease, old Box, by Mover) (b Box, receipt sandbox.Receipt, err error) {
	if err := by.Quiet(ctx, l); err != nil {
		return b, receipt, err
	}
	if receipt.From.Workspaces, err = by.Settle(ctx, old); err != nil {
		return b, receipt, err
	}
	if b, err = create(ctx, m.cfg.Boxes, p); err != nil {
		return b, receipt, err
	}
	if receipt.Lost, err = by.Carry(ctx, old, b); err != nil {
		return b, receipt, err
	}
	receipt.Outcome, receipt.Provider, receipt.Sandbox = sandbox.OutcomeMoved, b.Provider, b.ID
	receipt.Why = "moved from " + string(old.ID) + " of " + old.Provider
	return b, receipt, context.Cause(ctx)
}

// arrive moves the pointer.
func (m *Manager) arrive(ctx context.Context, p Plan, l lease.Lease, b Box) (epoch int64, err error) {
	box, err := pointer(p, b)
	if err != nil {
		return 0, err
	}
	op := lease.Arrive{Epoch: l.Epoch, Attempt: l.Attempt, Provider: b.Provider, Binding: b.Binding, Sandbox: b.ID, Image: b.Image, Box: box, Deadline: b.Deadline}
	now, effect, err := m.cfg.Leases.Apply(ctx, p.Group, op)
	if err != nil { // it may be done all the same
		var loadErr error
		if now, loadErr = m.cfg.Leases.Load(ctx, p.Group); loadErr != nil {
			// Removing either sandbox could end the wanted one. The reaper removes
			// the one that is not, by its key.
			return 0, &unknown{errors.Join(err, loadErr)}
		}
		if now.Sandbox == b.ID {
			return now.Epoch, nil
		}
		return 0, err
	}
	if !effect.Done {
		return 0, &sandbox.Error{Code: sandbox.CodeStale, Op: "session.swap", Subject: p.Group, Message: "the sandbox was replaced while the session was being moved"}
	}
	return now.Epoch, nil
}

// unknown says that it is not known which sandbox serves the session.
type unknown struct{ error }

func (u *unknown) Unwrap() error { return u.error }

// stay ends a move that failed, and removes what it made.
func (m *Manager) stay(ctx context.Context, l lease.Lease, made Box, cause error) error {
	if _, ok := errors.AsType[*unknown](cause); ok {
		return cause
	}
	if why := context.Cause(ctx); why != nil && sandbox.CodeOf(why) == sandbox.CodeStale {
		cause = why
	}
	ctx = context.WithoutCancel(ctx)
	if made.ID != "" {
		cause = errors.Join(cause, m.cfg.Boxes.Delete(ctx, made))
	}
	_, _, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Stay{Epoch: l.Epoch, Attempt: l.Attempt})
	return errors.Join(cause, err)
}

// pointer is what a lease keeps to find a sandbox again.
func pointer(p Plan, b Box) (json.RawMessage, error) {
	e, err := sandbox.Envelope{Backend: b.Provider, Binding: b.Binding, Box: string(b.ID), State: b.State, Spec: p.Spec}.Sealed()
	if err != nil {
		return nil, err
	}
	return json.Marshal(e)
}
