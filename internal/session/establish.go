// Package session provides sessions, which outlive sandboxes. A session has a
// name, a Spec, an environment and workspaces, and at most one sandbox at a
// time that serves it.
//
// The package guarantees: Only [Establish] and [Manager.Move] create a sandbox
// for a session. Establish does so only with typed evidence that the old one is
// gone. Move ends either the old sandbox or the new one. Saved data is never
// lost. A sandbox that lost the race for its lease is removed by the caller
// that created it.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Sandbox is a live sandbox of a session.
type Sandbox struct {
	ID       sandbox.ID
	Provider string
	Binding  string
	State    json.RawMessage // private to the driver, without secrets
	// Deadline is when the provider ends the sandbox; zero if it does not.
	Deadline time.Time
}

// Plan describes the sandbox that a session needs.
type Plan struct {
	Group    string
	Provider string // the requested provider; empty: that of the envelope
	Spec     sandbox.Spec
	// Key identifies this attempt to create a sandbox. It is stored with the
	// sandbox, so that the sandbox can be found if the provider's response is
	// lost.
	Key string
	// Prior is what the sandbox is rebuilt from. Some implementations of Sandboxes
	// create a sandbox directly from an archive in Create; their Hydrate only
	// reports that. Nil: there is no earlier state.
	Prior *durable.Envelope
	// Replaces is the sandbox that a session moves from. The new one gets its
	// workspaces.
	Replaces sandbox.ID
}

// Sandboxes creates, finds and ends sandboxes. An implementation returns CodeGone
// only with typed evidence about exactly that sandbox under exactly that
// binding.
type Sandboxes interface {
	// Create creates a sandbox for a plan.
	Create(ctx context.Context, p Plan) (Sandbox, error)
	// Find returns the sandbox that was created for a key, or CodeNotFound if the
	// provider responded that there is none.
	Find(ctx context.Context, p Plan) (Sandbox, error)
	// Resume finds the sandbox that an envelope names and resumes it. made reports
	// that this call created the sandbox, which happens with providers for which
	// resuming may create.
	Resume(ctx context.Context, e durable.Envelope) (b Sandbox, how durable.Outcome, made bool, err error)
	// Probe runs a small operation in a sandbox.
	Probe(ctx context.Context, b Sandbox) error
	// Hydrate restores saved data into a new sandbox. The caller uses the returned
	// sandbox, because restoring may replace b. lost names what could not be
	// restored.
	Hydrate(ctx context.Context, b Sandbox, e durable.Envelope) (now Sandbox, from durable.ReceiptFrom, lost []string, err error)
	// Capture saves the data of a sandbox, and returns an envelope without a sandbox
	// from which it can be rebuilt.
	Capture(ctx context.Context, b Sandbox, e durable.Envelope) (durable.Envelope, error)
	// Discard removes data of an earlier Capture that is no longer needed.
	Discard(ctx context.Context, prior durable.Envelope) error
	// Pause pauses a sandbox. CodeUnsupported: the provider cannot.
	Pause(ctx context.Context, b Sandbox) error
	// Delete ends a sandbox. It succeeds if the sandbox is already gone.
	Delete(ctx context.Context, b Sandbox) error
	// Permanent reports whether the sandboxes of a provider are machines that
	// belong to their users. These are never gone, whatever the provider says, and
	// are never ended.
	Permanent(ctx context.Context, provider string) bool
}

// Establish finds, resumes or creates the sandbox of a session.
//
// If the envelope names a sandbox, that one is resumed. On any error except
// CodeGone, Establish returns the error and creates nothing. e is nil for a
// session that never had a sandbox.
func Establish(ctx context.Context, sandboxes Sandboxes, p Plan, e *durable.Envelope) (Sandbox, durable.Receipt, error) {
	receipt := durable.Receipt{}
	if e != nil && p.Provider == "" {
		p.Provider = e.Backend
	}
	if e != nil && e.Sandbox != "" {
		b, how, err := resume(ctx, sandboxes, *e)
		if err == nil {
			return b, durable.Receipt{Outcome: how, Provider: b.Provider, Sandbox: b.ID}, nil
		}
		if sandbox.CodeOf(err) != sandbox.CodeGone {
			return Sandbox{}, receipt, err
		}
		receipt.Why = err.Error()
	}
	return rebuild(ctx, sandboxes, p, e, receipt)
}

// resume resumes the sandbox of an envelope and verifies its identity.
func resume(ctx context.Context, sandboxes Sandboxes, e durable.Envelope) (Sandbox, durable.Outcome, error) {
	b, how, made, err := sandboxes.Resume(ctx, e)
	if sandbox.CodeOf(err) == sandbox.CodeGone && sandboxes.Permanent(ctx, e.Backend) {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "session.resume", Subject: e.Sandbox, Message: "the machine does not answer", Cause: err}
	}
	if err != nil {
		return Sandbox{}, "", err
	}
	if string(b.ID) != e.Sandbox {
		if made { // only this call knows of the sandbox
			err = sandboxes.Delete(context.WithoutCancel(ctx), b)
		}
		return Sandbox{}, "", &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "session.resume", Subject: e.Sandbox, Cause: err,
			Message: fmt.Sprintf("provider %s answered with another sandbox, %s", e.Backend, b.ID),
		}
	}
	if err := sandboxes.Probe(ctx, b); err != nil {
		return Sandbox{}, "", notGone(err)
	}
	return b, how, nil
}

// notGone hides CodeGone from a probe: the probe is an operation inside the
// sandbox, so its errors prove nothing about the sandbox.
func notGone(err error) error {
	if sandbox.CodeOf(err) != sandbox.CodeGone {
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "session.resume", Message: "the sandbox was found and does not answer", Cause: err}
}

// rebuild creates a new sandbox and restores the saved data, if any.
func rebuild(ctx context.Context, sandboxes Sandboxes, p Plan, e *durable.Envelope, receipt durable.Receipt) (Sandbox, durable.Receipt, error) {
	p.Prior = e
	b, err := create(ctx, sandboxes, p)
	if err != nil {
		return Sandbox{}, receipt, err
	}
	receipt.Outcome, receipt.Provider = durable.OutcomeCreated, b.Provider
	if e != nil {
		now, from, lost, err := sandboxes.Hydrate(ctx, b, *e)
		if err != nil {
			// The new sandbox contains nothing of value. Return the error of the
			// restore.
			_ = sandboxes.Delete(context.WithoutCancel(ctx), b)
			return Sandbox{}, receipt, err
		}
		b, receipt.From, receipt.Lost = now, from, lost
		if from.Archive != nil || len(from.Workspaces) > 0 {
			receipt.Outcome = durable.OutcomeRebuilt
		}
	}
	receipt.Sandbox = b.ID
	return b, receipt, nil
}

// create creates a sandbox. If the response is lost, it looks for the sandbox.
func create(ctx context.Context, sandboxes Sandboxes, p Plan) (Sandbox, error) {
	b, err := sandboxes.Create(ctx, p)
	if err == nil || !unanswered(err) {
		return b, err
	}
	// The provider may have created the sandbox. Adopting it is safe, because only
	// this attempt uses the key. If the provider cannot be reached now, the reaper
	// will find the sandbox by its key.
	found, findErr := sandboxes.Find(context.WithoutCancel(ctx), p)
	if findErr != nil {
		return Sandbox{}, errors.Join(err, ignoreMissing(findErr))
	}
	if ctx.Err() != nil {
		return Sandbox{}, errors.Join(err, sandboxes.Delete(context.WithoutCancel(ctx), found))
	}
	return found, nil
}

// unanswered reports whether an error leaves open whether the provider acted.
func unanswered(err error) bool {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeUnavailable, sandbox.CodeTimeout, sandbox.CodeCanceled, sandbox.CodeInternal:
		return true
	}
	return false
}

func ignoreMissing(err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	return err
}
