package sessions

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

var (
	errAway  = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "getaddrinfo ENOTFOUND: sandbox not found"}
	errFull  = &sandbox.Error{Code: sandbox.CodeExhausted, Message: "no space"}
	errEnded = &sandbox.Error{Code: sandbox.CodeConflict, Message: "it ended"}
)

// in returns a change of a sandbox's state.
func in(state sandbox.State) func(*store.Sandbox) {
	return func(b *store.Sandbox) { b.State, b.Reason = state, "a test says so" }
}

// What a new holder gets, by what has become of the sandbox that the session had. Only
// proof that it is gone allows another one.
func TestAcquire(t *testing.T) {
	for _, tt := range []struct {
		name    string
		spec    sandbox.Spec
		unused  bool // it had no sandbox
		saved   bool // it was saved before
		becomes func(*store.Sandbox)
		prepare func(*rig)
		epoch   int64 // of the holder

		code    sandbox.Code
		outcome durable.Outcome
		at      int64 // the epoch after it
		lost    string
		did     string
	}{
		{name: "it had none", unused: true, outcome: durable.OutcomeCreated, at: 1, did: "make one"},
		{name: "it runs", outcome: durable.OutcomeAttached, at: 1, did: "reach sb-1"},
		{
			name: "it cannot be reached", saved: true, prepare: func(r *rig) { r.fail("reach sb-1", errAway) },
			code: sandbox.CodeUnavailable,
		},
		{
			name: "it is gone, and nothing was saved", becomes: in(sandbox.Gone),
			outcome: durable.OutcomeCreated, at: 2, lost: durable.LostWorkspace, did: "make one",
		},
		{
			name: "it is gone, and was saved", saved: true, becomes: in(sandbox.Gone),
			outcome: durable.OutcomeRebuilt, at: 2, lost: durable.LostChanges, did: "make one from a snapshot",
		},
		{name: "it is gone, on the machine of a person", saved: true, becomes: in(sandbox.Gone), prepare: func(r *rig) { r.permanent["one"] = true }, code: sandbox.CodeUnavailable},
		{name: "it is paused", becomes: in(sandbox.Paused), outcome: durable.OutcomeWoken, at: 1, did: "resume sb-1"},
		{
			name: "it is paused, and wakes by itself", becomes: func(b *store.Sandbox) { b.State, b.Rest.Wakes = sandbox.Paused, true },
			outcome: durable.OutcomeWoken, at: 1, did: "reach sb-1",
		},
		{
			name: "it is paused, and cannot be resumed", saved: true, becomes: in(sandbox.Paused), prepare: func(r *rig) { r.fail("resume sb-1", errFull) },
			code: sandbox.CodeExhausted,
		},
		{
			name: "it is stopped, with its files", becomes: func(b *store.Sandbox) { b.State, b.Rest.Kept = sandbox.Stopped, "sn-1" },
			outcome: durable.OutcomeResumed, at: 1, did: "start sb-1",
		},
		{
			name: "it is stopped, without them", becomes: in(sandbox.Stopped),
			outcome: durable.OutcomeCreated, at: 2, lost: durable.LostWorkspace, did: "destroy sb-1, make one",
		},
		{
			name: "it failed", saved: true, becomes: in(sandbox.Failed),
			outcome: durable.OutcomeRebuilt, at: 2, lost: durable.LostChanges, did: "destroy sb-1, make one from a snapshot",
		},
		{
			name: "it failed, and cannot be removed", saved: true, becomes: in(sandbox.Failed), prepare: func(r *rig) { r.fail("destroy sb-1", errAway) },
			code: sandbox.CodeUnavailable,
		},
		{name: "its machine is lost", saved: true, becomes: in(sandbox.Lost), code: sandbox.CodeUnavailable},
		{name: "it ends while it is reached", saved: true, prepare: func(r *rig) { r.fail("reach sb-1", errEnded) }, code: sandbox.CodeConflict},
		{
			name: "it fails while it is reached", saved: true, prepare: func(r *rig) {
				r.fail("reach sb-1", errEnded)
				r.reached = func() { _ = r.update(context.Background(), "sb-1", in(sandbox.Failed)) }
			},
			outcome: durable.OutcomeRebuilt, at: 2, lost: durable.LostChanges, did: "destroy sb-1, make one from a snapshot",
		},
		{
			name: "it has less isolation than is demanded", spec: sandbox.Spec{Isolation: sandbox.IsolationKernel},
			becomes: func(b *store.Sandbox) { b.Isolation = sandbox.IsolationNone }, code: sandbox.CodeUnsupported,
		},
		{
			name: "it belongs to another account", becomes: func(b *store.Sandbox) { b.Binding = "other" }, code: sandbox.CodeUnavailable,
		},
		{name: "none can be made", unused: true, prepare: func(r *rig) { r.fail("make one", errFull) }, code: sandbox.CodeExhausted},
		{
			name: "one is made, and the answer is lost", unused: true, prepare: func(r *rig) { r.lost["make one"] = errAway },
			outcome: durable.OutcomeCreated, at: 1, did: "make one",
		},
		{name: "no answer, and none was made", unused: true, prepare: func(r *rig) { r.fail("make one", errAway) }, code: sandbox.CodeUnavailable},
		{
			name: "a value of its environment is not here", unused: true, spec: sandbox.Spec{Env: map[string]string{"TOKEN": "x"}},
			prepare: func(r *rig) { clear(r.env) }, code: sandbox.CodeUnavailable,
		},
		{name: "the epoch of the holder", epoch: 1, outcome: durable.OutcomeAttached, at: 1, did: "reach sb-1"},
		{name: "an epoch that is not reached yet", epoch: 2, code: sandbox.CodeStale},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.session(t, durable.NewSession{Name: "agent", Spec: tt.spec})
			if !tt.unused {
				r.acquire(t, "agent", "first")
			}
			if tt.saved {
				_, err := r.Holders.Save(as(t), "agent", 0, false)
				coretest.OK(t, err)
			}
			if tt.becomes != nil {
				r.change(t, "sb-1", tt.becomes)
			}
			if tt.prepare != nil {
				tt.prepare(r)
			}
			before := r.living(t)
			r.done()
			got, err := r.Holders.Acquire(as(t), "agent", durable.HolderRef{ID: "second", Epoch: tt.epoch})
			coretest.WantCode(t, err, tt.code)
			if did := r.done(); did != tt.did {
				t.Errorf("it did %q, want %q", did, tt.did)
			}
			holds := slices.ContainsFunc(r.get(t, "agent").Lease.Holders, func(h durable.Holder) bool { return h.ID == "second" })
			if holds != (tt.code == "") {
				t.Errorf("the caller is a holder: %v, want %v", holds, tt.code == "")
			}
			if tt.code != "" {
				if after := r.living(t); !slices.Equal(after, before) {
					t.Errorf("after the error there are the sandboxes %v, want %v as before", after, before)
				}
				return
			}
			if got.Receipt.Outcome != tt.outcome || got.Epoch != tt.at {
				t.Errorf("it was %s in epoch %d, want %s in epoch %d", got.Receipt.Outcome, got.Epoch, tt.outcome, tt.at)
			}
			if tt.lost != "" && !slices.Contains(got.Receipt.Lost, tt.lost) || tt.lost == "" && len(got.Receipt.Lost) > 0 {
				t.Errorf("the receipt says that %q are lost, want %q", got.Receipt.Lost, tt.lost)
			}
			if all := r.living(t); len(all) != 1 || sandbox.ID(all[0]) != got.Sandbox {
				t.Errorf("there are the sandboxes %v, want %s alone", all, got.Sandbox)
			}
		})
	}
}

// A session whose tenant has used up its warm time gets no new holders. A turn under
// way stays, with the operators that serve it.
func TestAcquireWithoutWarmTime(t *testing.T) {
	for _, tt := range []struct {
		name string
		turn bool
		kind string
		id   string
		code sandbox.Code
	}{
		{"an operator", false, "operator", "second", sandbox.CodeExhausted},
		{"a turn", false, "turn", "second", sandbox.CodeExhausted},
		{"one that was a holder", false, "operator", "first", sandbox.CodeExhausted},
		{"the turn", true, "turn", "working", ""},
		{"an operator, during a turn", true, "operator", "second", ""},
		{"another turn, during a turn", true, "turn", "second", sandbox.CodeExhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.session(t, durable.NewSession{Name: "agent"})
			r.acquire(t, "agent", "first")
			if tt.turn {
				_, err := r.Holders.Acquire(as(t), "agent", durable.HolderRef{Kind: "turn", ID: "working"})
				coretest.OK(t, err)
			}
			r.limit(t, operator.Limits{WarmHours: 0.001})
			r.later(30 * time.Second)
			if tt.turn { // its heartbeats count the time
				coretest.OK(t, r.Holders.Heartbeat(as(t), "agent", durable.HolderRef{Kind: "turn", ID: "working", Epoch: 1}))
			}
			coretest.OK(t, r.Reaper.Sweep(t.Context())) // counts that of others
			_, err := r.Holders.Acquire(as(t), "agent", durable.HolderRef{Kind: tt.kind, ID: tt.id})
			coretest.WantCode(t, err, tt.code)
			if err != nil && !strings.Contains(err.Error(), "warmHours") {
				t.Errorf("the error is %v, want one that names the quota warmHours", err)
			}
		})
	}
}

// A request for an epoch reaches only the sandbox of that epoch.
func TestStaleRequests(t *testing.T) {
	r := newRig(t)
	r.session(t, durable.NewSession{Name: "agent"})
	r.acquire(t, "agent", "first")
	r.change(t, "sb-1", in(sandbox.Gone))
	r.acquire(t, "agent", "second")
	for name, do := range map[string]func() error{
		"route":     func() error { _, err := r.Holders.Route(as(t), "agent", 1, false); return err },
		"follow":    func() error { _, err := r.Holders.Route(as(t), "agent", 1, true); return err },
		"save":      func() error { _, err := r.Holders.Save(as(t), "agent", 1, false); return err },
		"watch":     func() error { return r.Holders.Watch(as(t), "agent", 1) },
		"heartbeat": func() error { return r.Holders.Heartbeat(as(t), "agent", durable.HolderRef{ID: "first", Epoch: 1}) },
		"acquire": func() error {
			_, err := r.Holders.Acquire(as(t), "agent", durable.HolderRef{ID: "first", Epoch: 1})
			return err
		},
	} {
		if err := do(); sandbox.CodeOf(err) != sandbox.CodeStale {
			t.Errorf("%s: the error is %v, want stale", name, err)
		}
	}
	got, err := r.Holders.Route(as(t), "agent", 2, false)
	coretest.OK(t, err)
	defer got.Done()
	if got.Sandbox != "sb-2" {
		t.Errorf("epoch 2 leads to %s, want sb-2", got.Sandbox)
	}
}
