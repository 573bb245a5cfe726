package remove_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func open(t *testing.T, p *coretest.Provider) (*remove.Remover, *sandboxtest.Rig) {
	t.Helper()
	r := sandboxtest.Open(t, p)
	return &remove.Remover{Core: r.Core, Records: r.Records, Workspaces: r.Workspaces}, r
}

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the service is away"}

// Removing a sandbox ends it at its provider before its record says so. What is
// gone stays gone, and is no error.
func TestDestroy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ref    string
		tenant string
		record func(*store.Sandbox)
		fails  map[string]error
		code   sandbox.Code
		state  sandbox.State
		reason string
		did    []string
	}{
		{name: "by its name", ref: "web", state: sandbox.Gone, reason: records.ReasonRemoved, did: []string{"destroy sb-1"}},
		{name: "by its id", ref: "sb-1", state: sandbox.Gone, reason: records.ReasonRemoved, did: []string{"destroy sb-1"}},
		{name: "of another tenant", ref: "sb-1", tenant: coretest.Rival, code: sandbox.CodeNotFound, state: sandbox.Running},
		{name: "an invalid name", ref: "../web", code: sandbox.CodeInvalid, state: sandbox.Running},
		{
			name: "that is gone already, by its former name", ref: "web", record: func(b *store.Sandbox) { b.State, b.Reason = sandbox.Gone, "it ended" },
			state: sandbox.Gone, reason: "it ended",
		},
		{name: "that the provider has lost", ref: "web", fails: map[string]error{"attach sb-1": &sandbox.Error{Code: sandbox.CodeGone}}, state: sandbox.Gone, reason: records.ReasonRemoved},
		{name: "that another installation has", ref: "web", fails: map[string]error{"attach sb-1": driver.ErrElsewhere}, state: sandbox.Gone, reason: records.ReasonRemoved},
		{name: "while the provider is away", ref: "web", fails: map[string]error{"attach sb-1": errAway}, code: sandbox.CodeUnavailable, state: sandbox.Running},
		{name: "that does not end", ref: "web", fails: map[string]error{"destroy sb-1": errAway}, code: sandbox.CodeUnavailable, state: sandbox.Running},
		{name: "of another daemon", ref: "web", record: func(b *store.Sandbox) { b.Node = "there" }, code: sandbox.CodeUnavailable, state: sandbox.Running},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}, Fails: tt.fails}
			s, r := open(t, p)
			var b store.Sandbox
			b.ID, b.Name = "sb-1", "web"
			if tt.record != nil {
				tt.record(&b)
			}
			r.Add(t, b)
			tenant := coretest.Acme
			if tt.tenant != "" {
				tenant = tt.tenant
			}
			err := s.Destroy(coretest.As(t, tenant, key.Write), tt.ref)
			coretest.WantCode(t, err, tt.code)
			if known, ok := errors.AsType[*sandbox.Error](err); ok && known.Op == "" {
				t.Errorf("the error %v names no operation", err)
			}
			if now := r.Record(t, "sb-1"); now.State != tt.state || now.Reason != tt.reason {
				t.Errorf("it is %s (%q), want %s (%q)", now.State, now.Reason, tt.state, tt.reason)
			}
			if did := p.Did(); !slices.Equal(did, tt.did) {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
			if s.Removing("sb-1") {
				t.Error("it is still being removed")
			}
		})
	}
}

// Who may not remove sandboxes ends none.
func TestDestroyNeedsTheRight(t *testing.T) {
	p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}}
	s, r := open(t, p)
	var b store.Sandbox
	b.ID = "sb-1"
	r.Add(t, b)
	coretest.WantCode(t, s.Destroy(coretest.As(t, coretest.Acme, key.Read), "sb-1"), sandbox.CodeDenied)
	if did := p.Did(); did != nil {
		t.Errorf("the provider was told %q, want nothing", did)
	}
}

// The saved state of a sandbox goes with it, and a sandbox whose lifetime ended has
// an exit that says so.
func TestDestroyResting(t *testing.T) {
	p := &coretest.Provider{Kept: []driver.FoundSnapshot{coretest.SnapshotOf("sn-1", true)}}
	s, r := open(t, p)
	var b store.Sandbox
	b.ID, b.State, b.Rest = "sb-1", sandbox.Paused, store.Rest{Pause: sandbox.PauseDisk, Kept: "sn-1"}
	r.Add(t, b)
	r.Save(t, coretest.Acme, store.Snapshot{Snapshot: durable.Snapshot{ID: "sn-1", Parent: "sb-1"}, Owner: "sb-1"}, true)
	coretest.OK(t, s.DestroyAs(coretest.As(t, coretest.Acme, key.Admin), "sb-1", ops.SandboxExpire, records.ReasonLifetime))
	now := r.Record(t, "sb-1")
	if now.State != sandbox.Gone || now.Rest != (store.Rest{}) || now.Exit == nil || now.Exit.Reason != sandbox.ReasonLifetime {
		t.Errorf("it is %s, rests %+v and ended with %+v, want gone, no rest, and an exit by its lifetime", now.State, now.Rest, now.Exit)
	}
	if did := p.Did(); !slices.Equal(did, []string{"remove sn-1"}) {
		t.Errorf("the provider was told %q, want to remove its saved state", did)
	}
	_, err := store.Read(t.Context(), r.Core.Store, func(tx *store.Tx) (store.Snapshot, error) { return tx.Operator().Snapshot(t.Context(), "sn-1") })
	coretest.WantCode(t, err, sandbox.CodeNotFound)
}

// Giving up a provider records that its sandboxes are gone, without asking it, and
// those of no other.
func TestGiveUp(t *testing.T) {
	p := &coretest.Provider{Fails: map[string]error{"attach sb-1": errAway}}
	s, r := open(t, p)
	var mine, other store.Sandbox
	mine.ID = "sb-1"
	other.ID, other.Provider, other.State = "sb-2", "e2b", sandbox.Lost
	r.Add(t, mine)
	r.Add(t, other)
	coretest.OK(t, s.GiveUp(t.Context(), sandboxtest.Provider))
	if b := r.Record(t, "sb-1"); b.State != sandbox.Gone || b.Reason != records.ReasonLost {
		t.Errorf("its sandbox is %s (%q), want gone (%q)", b.State, b.Reason, records.ReasonLost)
	}
	if b := r.Record(t, "sb-2"); b.State != sandbox.Lost {
		t.Errorf("the sandbox of another provider is %s, want what it was, lost", b.State)
	}
}
