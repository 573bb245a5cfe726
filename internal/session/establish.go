// Package session gives agents something that outlives sandboxes: a session
// holds a name, a Spec, an environment and workspaces, and always leads to the
// one sandbox that serves it now.
//
// The rules it keeps: only [Establish] and [Manager.Move] make a sandbox for a
// session; Establish does so only after typed evidence that the old one is gone,
// and Move ends the old one or the new one; what was saved is
// never lost; and a sandbox that lost the race for its lease is removed by
// whoever made it.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Box is a living sandbox of a session.
type Box struct {
	ID       sandbox.ID
	Provider string
	Binding  string
	Image    string
	State    json.RawMessage // the driver's own, without secrets
	// Deadline is when the provider ends the sandbox whatever is done; zero if it
	// does not.
	Deadline time.Time
}

// Plan is what a session wants of a sandbox.
type Plan struct {
	Group    string
	Provider string // chosen; empty: the envelope's
	Spec     sandbox.Spec
	// Key identifies this attempt to make a sandbox. A sandbox carries it, so
	// that one whose creation got no answer can be found.
	Key string
	// Prior is what the sandbox is made again from. Boxes that make a sandbox
	// directly from an archive do so in Create, and their Hydrate only reports
	// it. Nil: nothing was there before.
	Prior *sandbox.Envelope
	// Replaces is the sandbox that a session moves from. The new one gets its
	// workspaces.
	Replaces sandbox.ID
}

// Boxes makes, finds and ends sandboxes. Errors are classified: CodeGone only
// with typed evidence about exactly that sandbox under exactly that binding.
type Boxes interface {
	// Create makes a sandbox for a plan.
	Create(ctx context.Context, p Plan) (Box, error)
	// Find returns the sandbox that was made for a key, CodeNotFound if the
	// provider answered that there is none.
	Find(ctx context.Context, p Plan) (Box, error)
	// Resume finds the sandbox that an envelope names and makes it run. made
	// reports that this call made the sandbox, which happens at providers where
	// resuming creates.
	Resume(ctx context.Context, e sandbox.Envelope) (b Box, how sandbox.Outcome, made bool, err error)
	// Probe asks a sandbox to do something small.
	Probe(ctx context.Context, b Box) error
	// Hydrate loads what was saved into a new sandbox. The sandbox returned is
	// the one to use: loading may replace it. lost names what is not there.
	Hydrate(ctx context.Context, b Box, e sandbox.Envelope) (now Box, from sandbox.ReceiptFrom, lost []string, err error)
	// Capture saves what a sandbox has, and returns an envelope without a box
	// from which it can be rebuilt.
	Capture(ctx context.Context, b Box, e sandbox.Envelope) (sandbox.Envelope, error)
	// Discard removes what a capture kept and nobody needs any more.
	Discard(ctx context.Context, prior sandbox.Envelope) error
	// Pause keeps a sandbox without running it. CodeUnsupported: it cannot.
	Pause(ctx context.Context, b Box) error
	// Delete ends a sandbox. Deleting what is gone is success.
	Delete(ctx context.Context, b Box) error
	// Permanent reports whether the sandboxes of a provider are machines of their
	// users. They are never gone, whatever the provider says, and never ended.
	Permanent(ctx context.Context, provider string) bool
}

// Establish finds, wakes or makes the sandbox of a session.
//
// With an envelope that names a sandbox, that one is resumed. Any failure but
// CodeGone is returned, and nothing is made. e is nil for a session that never
// had a sandbox.
func Establish(ctx context.Context, boxes Boxes, p Plan, e *sandbox.Envelope) (Box, sandbox.Receipt, error) {
	receipt := sandbox.Receipt{}
	if e != nil && p.Provider == "" {
		p.Provider = e.Backend
	}
	if e != nil && e.Box != "" {
		b, how, err := resume(ctx, boxes, *e)
		if err == nil {
			return b, sandbox.Receipt{Outcome: how, Provider: b.Provider, Sandbox: b.ID}, nil
		}
		if sandbox.CodeOf(err) != sandbox.CodeGone {
			return Box{}, receipt, err
		}
		receipt.Why = err.Error()
	}
	return rebuild(ctx, boxes, p, e, receipt)
}

// resume finds the sandbox of an envelope and makes sure that it is the one.
func resume(ctx context.Context, boxes Boxes, e sandbox.Envelope) (Box, sandbox.Outcome, error) {
	b, how, made, err := boxes.Resume(ctx, e)
	if sandbox.CodeOf(err) == sandbox.CodeGone && boxes.Permanent(ctx, e.Backend) {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "session.resume", Subject: e.Box, Message: "the machine does not answer", Cause: err}
	}
	if err != nil {
		return Box{}, "", err
	}
	if string(b.ID) != e.Box {
		if made { // by this very call: nobody else knows of it
			err = boxes.Delete(context.WithoutCancel(ctx), b)
		}
		return Box{}, "", &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "session.resume", Subject: e.Box, Cause: err,
			Message: fmt.Sprintf("provider %s answered with another sandbox, %s", e.Backend, b.ID),
		}
	}
	if err := boxes.Probe(ctx, b); err != nil {
		return Box{}, "", notGone(err)
	}
	return b, how, nil
}

// notGone keeps a probe from proving anything: it is an operation inside a
// sandbox and not a question about it.
func notGone(err error) error {
	if sandbox.CodeOf(err) != sandbox.CodeGone {
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "session.resume", Message: "the sandbox was found and does not answer", Cause: err}
}

// rebuild makes a new sandbox, from what was saved if anything was.
func rebuild(ctx context.Context, boxes Boxes, p Plan, e *sandbox.Envelope, receipt sandbox.Receipt) (Box, sandbox.Receipt, error) {
	p.Prior = e
	b, err := create(ctx, boxes, p)
	if err != nil {
		return Box{}, receipt, err
	}
	receipt.Outcome, receipt.Provider = sandbox.OutcomeCreated, b.Provider
	if e != nil {
		now, from, lost, err := boxes.Hydrate(ctx, b, *e)
		if err != nil {
			// The placeholder holds nothing that anybody wants. What matters is why
			// it could not be filled.
			_ = boxes.Delete(context.WithoutCancel(ctx), b)
			return Box{}, receipt, err
		}
		b, receipt.From, receipt.Lost = now, from, lost
		if from.Archive != nil || len(from.Workspaces) > 0 {
			receipt.Outcome = sandbox.OutcomeRebuilt
		}
	}
	receipt.Sandbox = b.ID
	return b, receipt, nil
}

// create makes a sandbox, and looks for it where no answer came.
func create(ctx context.Context, boxes Boxes, p Plan) (Box, error) {
	b, err := boxes.Create(ctx, p)
	if err == nil || !unanswered(err) {
		return b, err
	}
	// The provider may have made it. Adopting is safe: the key is this attempt's
	// alone. If it cannot be asked now, the reaper finds the sandbox by its key.
	found, findErr := boxes.Find(context.WithoutCancel(ctx), p)
	if findErr != nil {
		return Box{}, errors.Join(err, ignoreMissing(findErr))
	}
	if ctx.Err() != nil {
		return Box{}, errors.Join(err, boxes.Delete(context.WithoutCancel(ctx), found))
	}
	return found, nil
}

// unanswered reports an error that leaves open whether the provider acted.
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
