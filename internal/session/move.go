package session

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Mover is what Move needs in addition to Sandboxes.
type Mover interface {
	// Quiet waits until the sandbox of a lease has no requests in progress. No
	// request starts while the lease is moving.
	Quiet(ctx context.Context, l lease.Lease) error
	// SaveWorkspaces saves the workspaces of a sandbox, which continues to run.
	SaveWorkspaces(ctx context.Context, b Sandbox) ([]durable.WorkspaceRef, error)
	// Carry checks that a new sandbox responds, and copies files to it that are
	// not in its workspaces. lost names what was not copied.
	Carry(ctx context.Context, from, to Sandbox) (lost []string, err error)
}

// Move replaces the sandbox of a warm session with a new one, described by p,
// that has the same files. The lease is changed last: if an earlier step fails,
// the old sandbox continues to serve, and the new one is removed. held is a
// holder of the caller that Move keeps alive. CodeStale: the sandbox was
// replaced meanwhile, or is being moved.
func (m *Manager) Move(ctx context.Context, p Plan, epoch int64, held lease.Heartbeat, by Mover) (Held, error) {
	l, err := m.depart(ctx, p.Group, epoch)
	if err != nil {
		return Held{}, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go m.renew(ctx, stop, l, held)
	old := Sandbox{ID: l.Sandbox, Provider: l.Provider, Binding: l.Binding}
	p.Key, p.Replaces, p.Prior = m.cfg.Key(p.Group, l.Attempt), old.ID, nil
	b, receipt, err := m.transfer(ctx, p, l, old, by)
	if err == nil {
		receipt.Epoch, err = m.arrive(context.WithoutCancel(ctx), p, l, b)
	}
	if err != nil {
		return Held{}, m.stay(ctx, l, b, err)
	}
	// If this fails, the reaper ends the old sandbox by its key.
	m.cfg.Progress(p.Group, "ending "+string(old.ID))
	return Held{Sandbox: b, Epoch: receipt.Epoch, Receipt: receipt}, notEnded(m.cfg.Sandboxes.Delete(context.WithoutCancel(ctx), old))
}

// depart starts a move: from then on no request starts in the sandbox.
func (m *Manager) depart(ctx context.Context, group string, epoch int64) (lease.Lease, error) {
	l, effect, err := m.cfg.Leases.Apply(ctx, group, lease.Depart{Epoch: epoch, Spawner: m.cfg.Spawner})
	if err == nil && !effect.Done {
		err = &sandbox.Error{Code: sandbox.CodeStale, Op: "session.swap", Subject: group, Message: "the sandbox was replaced, or the session is being moved or saved"}
	}
	return l, err
}

// Exclusive calls do while the sandbox of a warm session serves no requests.
// Requests in progress end first; quiet waits for them. New requests wait. held
// is a holder of the caller. If the session has viewers, Exclusive returns
// CodeConflict.
func (m *Manager) Exclusive(ctx context.Context, group string, epoch int64, held lease.Heartbeat, quiet func(context.Context, lease.Lease) error, do func(context.Context) error) error {
	l, err := m.depart(ctx, group, epoch)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go m.renew(ctx, stop, l, held)
	if l.Count(lease.Viewer) > 0 {
		err = &sandbox.Error{Code: sandbox.CodeConflict, Op: "session.save", Subject: group, Message: "the sandbox has viewers, and saving has to pause it", Hint: "try again when it has no viewers"}
	} else if err = quiet(ctx, l); err == nil {
		err = do(ctx)
	}
	return m.stay(ctx, l, Sandbox{}, err)
}

// NotEnded is returned by Move if the session was moved but its former sandbox
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

// renewEvery is the interval at which a move is renewed: holders end after 90
// seconds.
const renewEvery = 20 * time.Second

// renew keeps a move and its holder alive until ctx ends. It calls stop if the
// move is no longer current.
func (m *Manager) renew(ctx context.Context, stop context.CancelCauseFunc, l lease.Lease, held lease.Heartbeat) {
	every := min(renewEvery, m.cfg.Patience/3)
	for m.cfg.Sleep(ctx, every) == nil {
		_, effect, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Depart{Epoch: l.Epoch, Attempt: l.Attempt})
		if err == nil && !effect.Done {
			stop(&sandbox.Error{Code: sandbox.CodeStale, Op: "session.swap", Subject: l.Group, Message: "the sandbox was replaced meanwhile"})
			return
		}
		_, _, _ = m.cfg.Leases.Apply(ctx, l.Group, held) // an error is noticed by the renewal above
	}
}

// transfer creates the new sandbox, with the files of the old one.
func (m *Manager) transfer(ctx context.Context, p Plan, l lease.Lease, old Sandbox, by Mover) (b Sandbox, receipt durable.Receipt, err error) {
	if err := by.Quiet(ctx, l); err != nil {
		return b, receipt, err
	}
	if receipt.From.Workspaces, err = by.SaveWorkspaces(ctx, old); err != nil {
		return b, receipt, err
	}
	if b, err = create(ctx, m.cfg.Sandboxes, p); err != nil {
		return b, receipt, err
	}
	if receipt.Lost, err = by.Carry(ctx, old, b); err != nil {
		return b, receipt, err
	}
	receipt.Outcome, receipt.Provider, receipt.Sandbox = durable.OutcomeMoved, b.Provider, b.ID
	receipt.Why = "moved from " + string(old.ID) + " of " + old.Provider
	return b, receipt, context.Cause(ctx)
}

// arrive changes the lease to the new sandbox.
func (m *Manager) arrive(ctx context.Context, p Plan, l lease.Lease, b Sandbox) (epoch int64, err error) {
	sb, err := pointer(p, b)
	if err != nil {
		return 0, err
	}
	op := lease.Arrive{Epoch: l.Epoch, Attempt: l.Attempt, Provider: b.Provider, Binding: b.Binding, Sandbox: b.ID, Image: p.Spec.Image, Ref: sb, Deadline: b.Deadline}
	now, effect, err := m.cfg.Leases.Apply(ctx, p.Group, op)
	if err != nil { // it may have taken effect
		var loadErr error
		if now, loadErr = m.cfg.Leases.Load(ctx, p.Group); loadErr != nil {
			// Removing either sandbox could end the one in use. The reaper removes the
			// other one by its key.
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

// unknown means that it is not known which sandbox serves the session.
type unknown struct{ error }

func (u *unknown) Unwrap() error { return u.error }

// stay ends a move that failed, and removes the new sandbox.
func (m *Manager) stay(ctx context.Context, l lease.Lease, made Sandbox, cause error) error {
	if _, ok := errors.AsType[*unknown](cause); ok {
		return cause
	}
	if why := context.Cause(ctx); why != nil && sandbox.CodeOf(why) == sandbox.CodeStale {
		cause = why
	}
	ctx = context.WithoutCancel(ctx)
	if made.ID != "" {
		cause = errors.Join(cause, m.cfg.Sandboxes.Delete(ctx, made))
	}
	_, _, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Stay{Epoch: l.Epoch, Attempt: l.Attempt})
	return errors.Join(cause, err)
}

// pointer returns what a lease stores to find a sandbox again.
func pointer(p Plan, b Sandbox) (json.RawMessage, error) {
	return json.Marshal(durable.Envelope{Backend: b.Provider, Binding: b.Binding, Sandbox: string(b.ID), State: b.State, Spec: p.Spec}.Sealed())
}
