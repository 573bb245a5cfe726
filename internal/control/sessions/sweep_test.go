package sessions

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// What two sweeps do with the sandbox of a session: one a minute after its holder was
// last seen or left, and one after the grace period. No data is lost: a sandbox that
// cannot be saved stays.
func TestSweep(t *testing.T) {
	for _, tt := range []struct {
		name    string
		session durable.NewSession
		kind    string // of its holder
		leaves  bool   // the holder
		beats   bool
		prepare func(*testing.T, *rig)

		code  sandbox.Code // of the last sweep
		state lease.State
		left  string
		did   string
	}{
		{name: "its holder beats", beats: true, state: lease.Warm, left: "sb-1"},
		{name: "its turn does not", kind: "turn", state: lease.Warm, left: "sb-1"},
		{name: "its operator does not", state: lease.Cold, did: "reach sb-1, save sb-1, destroy sb-1"},
		{name: "its viewer does not", kind: "viewer", state: lease.Cold, did: "reach sb-1, save sb-1, destroy sb-1"},
		{name: "its turn leaves", kind: "turn", leaves: true, state: lease.Cold, did: "reach sb-1, save sb-1, destroy sb-1"},
		{name: "it pauses", session: durable.NewSession{PauseOnExit: true}, leaves: true, state: lease.Cold, left: "sb-1", did: "reach sb-1, save sb-1, pause sb-1 to-disk=true"},
		{
			name: "it pauses, in memory only", session: durable.NewSession{PauseOnExit: true}, leaves: true, state: lease.Cold, left: "sb-1",
			prepare: func(_ *testing.T, r *rig) {
				r.fail("pause sb-1 to-disk=true", &sandbox.Error{Code: sandbox.CodeUnsupported})
			}, did: "reach sb-1, save sb-1, pause sb-1 to-disk=false",
		},
		{
			name: "it cannot be saved", leaves: true, prepare: func(_ *testing.T, r *rig) { r.fail("save sb-1", errFull) },
			code: sandbox.CodeExhausted, state: lease.Draining, left: "sb-1", did: "reach sb-1, reach sb-1",
		},
		{
			name: "it cannot be reached", leaves: true, prepare: func(_ *testing.T, r *rig) { r.fail("reach sb-1", errAway) },
			code: sandbox.CodeUnavailable, state: lease.Draining, left: "sb-1",
		},
		{
			name: "it cannot be ended", leaves: true, prepare: func(_ *testing.T, r *rig) { r.fail("destroy sb-1", errAway) },
			code: sandbox.CodeUnavailable, state: lease.Draining, left: "sb-1", did: "reach sb-1, save sb-1",
		},
		{name: "it is gone", leaves: true, prepare: func(t *testing.T, r *rig) { r.change(t, "sb-1", in(sandbox.Gone)) }, state: lease.Cold},
		{name: "it is a machine of a person", leaves: true, prepare: func(_ *testing.T, r *rig) { r.permanent["one"] = true }, state: lease.Cold, left: "sb-1"},
		{name: "another daemon has it", leaves: true, prepare: func(t *testing.T, r *rig) { r.change(t, "sb-1", func(b *store.Sandbox) { b.Node = "there" }) }, state: lease.Draining, left: "sb-1"},
		{name: "it has workspaces", session: durable.NewSession{Spec: sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "data"}}}}, leaves: true, state: lease.Cold, did: "reach sb-1, persist data, destroy sb-1"},
		{name: "its provider saves only stopped ones", leaves: true, prepare: func(_ *testing.T, r *rig) { r.stopped["one"] = true }, state: lease.Cold, did: "reach sb-1, pause sb-1 to-disk=true, save sb-1, destroy sb-1"},
		{name: "its provider has no snapshots", leaves: true, prepare: func(_ *testing.T, r *rig) { delete(r.facts, "one") }, state: lease.Cold, did: "reach sb-1, destroy sb-1"},
		{name: "its provider is a node", leaves: true, prepare: func(_ *testing.T, r *rig) { r.nodes["one"] = true }, state: lease.Cold, did: "reach sb-1, destroy sb-1"},
		{
			name: "its tenant has used up its time", beats: true, prepare: func(t *testing.T, r *rig) { r.limit(t, operator.Limits{WarmHours: 0.001}) },
			state: lease.Cold, did: "reach sb-1, save sb-1, destroy sb-1",
		},
		{
			name: "a sandbox of an earlier attempt is there", beats: true, state: lease.Warm, left: "sb-1", did: "destroy sb-2",
			prepare: func(t *testing.T, r *rig) { r.orphan(t, "agent") },
		},
		{name: "it is being removed", kind: "turn", prepare: func(t *testing.T, r *rig) { r.removing(t, "agent") }, did: "destroy sb-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			tt.session.Name = "agent"
			r.session(t, tt.session)
			holder := durable.HolderRef{Kind: tt.kind, ID: "first"}
			got, err := r.Holders.Acquire(as(t), "agent", holder)
			coretest.OK(t, err)
			holder.Epoch = got.Epoch
			if tt.prepare != nil {
				tt.prepare(t, r)
			}
			if tt.leaves {
				coretest.OK(t, r.Holders.Release(as(t), "agent", holder))
			}
			r.done()
			for range 3 {
				r.later(61 * time.Second)
				if tt.beats {
					_ = r.Holders.Heartbeat(as(t), "agent", holder)
				}
				err = r.Reaper.Sweep(t.Context())
			}
			coretest.WantCode(t, err, tt.code)
			if did := strings.Join(slices.Compact(strings.Split(r.done(), ", ")), ", "); did != strings.Join(slices.Compact(strings.Split(tt.did, ", ")), ", ") {
				t.Errorf("it did %q, want %q", did, tt.did)
			}
			if left := strings.Join(r.living(t), " "); left != tt.left {
				t.Errorf("the sandboxes %q are left, want %q", left, tt.left)
			}
			if tt.state == "" {
				_, err := r.Sessions.Get(as(t), "agent")
				coretest.WantCode(t, err, sandbox.CodeNotFound)
				return
			}
			if l := r.get(t, "agent").Lease; l.State != string(tt.state) {
				t.Errorf("the lease is %+v, want it %s", l, tt.state)
			}
		})
	}
}

// A daemon that was killed left what it was doing. The next one of the same node ends
// that, and nothing of other daemons.
func TestRecover(t *testing.T) {
	for _, tt := range []struct {
		name    string
		spawner string // of the attempt that was under way
		holder  string // that is there
		state   lease.State
		holders int
	}{
		{"its own attempt", "daemon-here-", "", lease.Cold, 1},
		{"that of another daemon", "daemon-there-", "", lease.Warming, 1},
		{"its own holder", "", "daemon-here-abcdefghijklmnop", lease.Draining, 0},
		{"the holder of another daemon", "", "daemon-here-b-abcdefghijklmnop", lease.Warm, 1},
		{"the holder of a person", "", "somebody", lease.Warm, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.session(t, durable.NewSession{Name: "agent", Group: "agents"})
			all := r.Reaper.leases.of(coretest.Acme)
			if tt.spawner != "" {
				_, _, err := all.Apply(t.Context(), "agents", lease.Acquire{Kind: lease.Operator, ID: "waits", Spawner: tt.spawner})
				coretest.OK(t, err)
			} else {
				r.acquire(t, "agent", tt.holder)
			}
			coretest.OK(t, r.Reaper.Recover(t.Context()))
			l, err := all.Load(t.Context(), "agents")
			coretest.OK(t, err)
			if l.State != tt.state || len(l.Holders) != tt.holders {
				t.Errorf("the lease is %s with the holders %+v, want it %s with %d", l.State, l.Holders, tt.state, tt.holders)
			}
		})
	}
}
