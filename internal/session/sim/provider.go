package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// simProvider is the simulated provider. It fails before or after it acted, and its
// error texts falsely say "not found" about live sandboxes.
type simProvider struct {
	w *world
	a *actor
}

// call is one request: it may fail before act, or lose the response after it.
func (p *simProvider) call(what string, at *simSandbox, act func() error) error {
	w := p.w
	var n *node
	if at != nil {
		n = at.node
	}
	w.wait(p.a)
	lie := &sandbox.Error{Code: sandbox.CodeUnavailable, Message: what + ": 503: sandbox not found (getaddrinfo ENOTFOUND)"}
	if !w.reaches(p.a, n) && !at.gone {
		return unreachable(w, lie)
	}
	if w.rng.Float64() < w.opts.Faults {
		return mutateError(w, lie)
	}
	err := act()
	w.note(p.a, "%s: %v", what, err)
	w.wait(p.a)
	if !w.reaches(p.a, n) && !at.gone {
		return unreachable(w, lie)
	}
	if w.rng.Float64() < w.opts.Faults {
		return mutateError(w, lie)
	}
	return err
}

func (p *simProvider) Create(_ context.Context, plan session.Plan) (session.Sandbox, error) {
	w := p.w
	if w.opts.Nodes > 0 {
		return p.createOn(plan)
	}
	var b *simSandbox
	err := p.call("create "+plan.Key, nil, func() error {
		w.rivals(p.a, plan.Key)
		b = w.make(plan.Key)
		return nil
	})
	if err != nil {
		return session.Sandbox{}, err
	}
	return p.w.handle(b), nil
}

func (w *world) make(key string) *simSandbox {
	w.made++
	b := &simSandbox{id: sandbox.ID(fmt.Sprintf("sb-%d", w.made)), key: key, alive: true, made: w.now}
	w.sandboxes[b.id] = b
	return b
}

// rivals checks that an attempt that can still commit does not create a sandbox
// while another one serves the group. An attempt that was given up may, and
// removes it.
func (w *world) rivals(a *actor, key string) {
	if _, attempt, _ := session.SplitKey(key); attempt != w.lease.Attempt || w.lease.State != lease.Warming {
		return
	}
	for _, id := range w.ids() {
		if old := w.sandboxes[id]; old.alive && old.served && !old.gone {
			w.violated("%s made a rival for %s", a.name, old.id)
		}
	}
}

func (w *world) handle(b *simSandbox) session.Sandbox {
	made := session.Sandbox{ID: b.id, Provider: "p", Binding: "acct"}
	if b.node != nil {
		made.Provider = b.node.name
	}
	if w.opts.Lifetime > 0 {
		made.Deadline = b.made.Add(w.opts.Lifetime)
	}
	return made
}

func (p *simProvider) Find(_ context.Context, plan session.Plan) (found session.Sandbox, err error) {
	err = p.call("find "+plan.Key, nil, func() error {
		for _, id := range p.w.ids() {
			if b := p.w.sandboxes[id]; b.alive && !b.gone && b.key == plan.Key {
				found = p.w.handle(b)
				return nil
			}
		}
		return &sandbox.Error{Code: sandbox.CodeNotFound}
	})
	return found, err
}

func (p *simProvider) Resume(_ context.Context, e durable.Envelope) (b session.Sandbox, how durable.Outcome, made bool, err error) {
	err = p.call("resume "+e.Sandbox, p.w.sandboxes[sandbox.ID(e.Sandbox)], func() error {
		found := p.w.sandboxes[sandbox.ID(e.Sandbox)]
		if found != nil && found.lost && p.w.opts.Losses > 0 && p.w.rng.IntN(2) == 0 {
			// This provider creates a sandbox that it does not find.
			b, how, made = p.w.handle(p.w.make(found.key)), durable.OutcomeAttached, true
			if p.w.opts.Mutant == "identity is not checked" {
				b.ID = found.id // without the check it is mistaken for the old one
				p.w.sandboxes[b.ID] = &simSandbox{id: b.ID, key: found.key, alive: true, made: p.w.now}
			}
			return nil
		}
		if found == nil || !found.alive || found.gone {
			return &sandbox.Error{Code: sandbox.CodeGone, Subject: e.Sandbox, Message: "the provider says that it was deleted"}
		}
		b, how = p.w.handle(found), durable.OutcomeAttached
		if found.paused {
			found.paused, how = false, durable.OutcomeWoken
		}
		if p.w.opts.Mutant == "found sandboxes are removed" {
			how = durable.OutcomeCreated
		}
		return nil
	})
	return b, how, made, err
}

func (p *simProvider) Probe(_ context.Context, b session.Sandbox) error {
	return p.call("probe "+string(b.ID), p.w.sandboxes[b.ID], func() error { return p.alive(b) })
}

func (p *simProvider) alive(b session.Sandbox) error {
	if found := p.w.sandboxes[b.ID]; found == nil || !found.alive || found.gone {
		return &sandbox.Error{Code: sandbox.CodeGone, Subject: string(b.ID)}
	}
	return nil
}

func (p *simProvider) Hydrate(_ context.Context, b session.Sandbox, e durable.Envelope) (session.Sandbox, durable.ReceiptFrom, []string, error) {
	from := durable.ReceiptFrom{Archive: e.Archive}
	err := p.call("hydrate "+string(b.ID), p.w.sandboxes[b.ID], func() error {
		if e.Archive != nil {
			p.w.sandboxes[b.ID].data = int(e.Archive.Size)
		}
		return p.alive(b)
	})
	return b, from, []string{durable.LostProcesses}, err
}

func (p *simProvider) Capture(_ context.Context, b session.Sandbox, e durable.Envelope) (durable.Envelope, error) {
	err := p.call("capture "+string(b.ID), p.w.sandboxes[b.ID], func() error {
		if err := p.alive(b); err != nil {
			return err
		}
		e.Archive = &durable.Archive{Kind: "tar", Ref: "blob", Size: int64(p.w.sandboxes[b.ID].data)}
		return nil
	})
	return e, err
}

func (p *simProvider) Discard(context.Context, durable.Envelope) error {
	return p.call("discard", nil, func() error { return nil })
}

func (p *simProvider) Pause(_ context.Context, b session.Sandbox) error {
	return p.call("pause "+string(b.ID), p.w.sandboxes[b.ID], func() error {
		if err := p.alive(b); err != nil {
			return err
		}
		p.w.sandboxes[b.ID].paused = true
		return nil
	})
}

func (p *simProvider) Delete(_ context.Context, b session.Sandbox) error {
	return p.call("delete "+string(b.ID), p.w.sandboxes[b.ID], func() error {
		if found := p.w.sandboxes[b.ID]; found != nil && !found.gone {
			p.w.end(p.a, found)
		}
		return nil
	})
}

func (p *simProvider) Permanent(context.Context, string) bool { return false }

// Mutants are rules that a run can break; the invariants must notice each. The
// key is the value for Options.Mutant.
var Mutants = map[string]string{
	"any failure is gone":         "only typed evidence about a sandbox licenses a new one",
	"late spawners commit":        "a spawner that was given up cannot publish its sandbox",
	"endings can be undone":       "a sandbox that is being ended serves no requests",
	"old captures count":          "a capture from before the sandbox was used again is not its archive",
	"nothing is captured":         "a sandbox is captured before it ends",
	"found sandboxes are removed": "a sandbox that an attempt found and did not make is not removed by it",
	"failures forget the archive": "a failed attempt keeps what the sandbox can be rebuilt from",
	"failures forget the sandbox": "a failed attempt keeps what the sandbox can be found by",
	"orphan of a running attempt": "a sandbox that is being made is not an orphan",
	"evicted sandboxes serve":     "a sandbox that is being saved because of its deadline serves no requests",
	"deadlines are ignored":       "a sandbox that is in use is saved before its deadline, too",
	"a dead attempt goes on":      "a daemon that starts ends the attempts of its own dead process",
	"identity is not checked":     "a sandbox with another id is not the one that was asked for",
}

// mutateOp breaks rules that are checks of an operation.
func mutateOp(w *world, op lease.Op) lease.Op {
	switch o := op.(type) {
	case lease.Commit:
		if w.opts.Mutant == "late spawners commit" {
			o.Attempt = w.lease.Attempt
			return o
		}
	case lease.Arrive:
		if w.opts.Mutant == "late movers arrive" && w.lease.State == lease.Warm && w.lease.Epoch == o.Epoch {
			o.Attempt, w.lease.Moving = w.lease.Attempt, w.now.Add(time.Minute)
			return o
		}
		if w.opts.Mutant == "moves do not expire" && !w.lease.Moving.IsZero() {
			w.lease.Moving = w.now.Add(time.Minute)
		}
	case lease.Persist:
		if w.opts.Mutant == "old captures count" {
			o.Drain = w.lease.Drains
			return o
		}
	case lease.Begin:
		if w.opts.Mutant == "old captures count" {
			o.Drain = w.lease.Drains
			return o
		}
	case lease.Confirm:
		if w.opts.Mutant == "old captures count" {
			o.Drain = w.lease.Drains
			return o
		}
	}
	return op
}

// mutateLease breaks rules that are effects of an operation.
func mutateLease(w *world, op lease.Op, before, after lease.Lease) lease.Lease {
	switch op.(type) {
	case lease.Evict:
		if w.opts.Mutant == "deadlines are ignored" {
			return before
		}
	case lease.Acquire:
		if w.opts.Mutant == "endings can be undone" && before.Ending {
			after.State, after.Ending = lease.Warm, false
		}
	case lease.Persist:
		if w.opts.Mutant == "nothing is captured" {
			after.Archive = before.Archive
		}
	case lease.Fail, lease.Tick:
		if w.opts.Mutant == "failures forget the archive" && before.State == lease.Warming && after.State == lease.Cold {
			after.Archive = nil
		}
		if w.opts.Mutant == "failures forget the sandbox" && before.State == lease.Warming && after.State == lease.Cold {
			after.Sandbox, after.Ref = "", nil
		}
	}
	return after
}

func mutateError(w *world, err error) error {
	if w.opts.Mutant == "any failure is gone" {
		return &sandbox.Error{Code: sandbox.CodeGone, Message: err.Error()}
	}
	return err
}
