package snapshots_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the service is away"}

// ids returns the snapshots that are recorded on this node.
func ids(t *testing.T, r *sandboxtest.Rig) (all []string) {
	t.Helper()
	found, err := store.Read(t.Context(), r.Core.Store, func(tx *store.Tx) ([]store.Snapshot, error) {
		return tx.Operator().Snapshots(t.Context(), coretest.Node, "", 100)
	})
	coretest.OK(t, err)
	for _, s := range found {
		all = append(all, s.ID)
	}
	return all
}

func named(id, name string) store.Snapshot {
	return store.Snapshot{Snapshot: durable.Snapshot{ID: id, Name: name}}
}

// A snapshot of a running sandbox is taken by its provider, and one of a sandbox on
// disk is a copy of its saved state. After a failure none is left.
func TestCreate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		state  sandbox.State
		kept   bool // the sandbox is on disk, with memory
		adopt  bool // it was created without a daemon
		req    durable.SnapshotRequest
		fails  map[string]error
		code   sandbox.Code
		memory bool
		did    string
	}{
		{name: "running, with memory", req: durable.SnapshotRequest{Name: "one", Memory: true}, memory: true, did: "save sb-1 memory=true stop=false"},
		{name: "running, without", req: durable.SnapshotRequest{Name: "one"}, did: "save sb-1 memory=false stop=false"},
		{name: "on disk, with memory", state: sandbox.Paused, kept: true, req: durable.SnapshotRequest{Name: "one", Memory: true}, memory: true, did: "copy sn-1"},
		{name: "on disk with memory, without", state: sandbox.Paused, kept: true, req: durable.SnapshotRequest{Name: "one"}, code: sandbox.CodeConflict},
		{name: "that the provider cannot take", req: durable.SnapshotRequest{Name: "one"}, fails: map[string]error{"save sb-1 memory=false stop=false": errAway}, code: sandbox.CodeUnavailable},
		{name: "of a sandbox that is not known well enough", adopt: true, req: durable.SnapshotRequest{Name: "one"}, code: sandbox.CodeUnsupported},
		{name: "to be saved, without a blob store", req: durable.SnapshotRequest{Name: "one", Save: true}, code: sandbox.CodeUnsupported},
		{name: "with a name that is taken", req: durable.SnapshotRequest{Name: "old"}, code: sandbox.CodeAlreadyExists},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}, Fails: tt.fails}
			p.Can.Capabilities.Memory = true
			r := sandboxtest.Open(t, p)
			var b store.Sandbox
			b.ID, b.Name, b.State = "sb-1", "web", tt.state
			before := []string{"sn-0"}
			r.Save(t, coretest.Acme, named("sn-0", "old"), true)
			if tt.kept {
				b.Rest = store.Rest{Pause: sandbox.PauseDisk, Kept: "sn-1"}
				r.Save(t, coretest.Acme, store.Snapshot{Snapshot: durable.Snapshot{ID: "sn-1", Memory: true, Parent: "sb-1"}, Owner: "sb-1"}, true)
				before = append(before, "sn-1")
			}
			if tt.adopt {
				b.Provider, b.Binding = sandboxtest.Provider, sandboxtest.Binding
				coretest.Add(t, r.Core, coretest.Acme, b)
			} else {
				r.Add(t, b)
			}
			made, err := r.Snapshots.CreateSnapshot(coretest.As(t, coretest.Acme, key.Write), "web", tt.req)
			coretest.WantCode(t, err, tt.code)
			if known, ok := errors.AsType[*sandbox.Error](err); ok && known.Op == "" {
				t.Errorf("the error %v names no operation", err)
			}
			if did := strings.Join(p.Did(), ", "); did != tt.did {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
			if tt.code != "" {
				if left := ids(t, r); !slices.Equal(left, before) {
					t.Errorf("afterwards there are %v, want those from before, %v", left, before)
				}
				return
			}
			got, err := r.Snapshots.GetSnapshot(coretest.As(t, coretest.Acme, key.Read), "one")
			coretest.OK(t, err)
			if got.ID != made.ID || !got.Ready || got.Memory != tt.memory || got.Parent != "sb-1" || got.Provider != sandboxtest.Provider {
				t.Errorf("the snapshot is %+v, want %s of sb-1, complete, with memory: %v", got, made.ID, tt.memory)
			}
			_, err = r.Snapshots.GetSnapshot(coretest.As(t, coretest.Rival, key.Read), made.ID)
			coretest.WantCode(t, err, sandbox.CodeNotFound)
		})
	}
}

// From which snapshots a sandbox can be made here.
func TestSource(t *testing.T) {
	r := sandboxtest.Open(t, &coretest.Provider{})
	r.Save(t, coretest.Acme, named("sn-1", "here"), true)
	r.Save(t, coretest.Acme, named("sn-2", "early"), false)
	there := named("sn-3", "there")
	there.Node = "there"
	r.Save(t, coretest.Acme, there, true)
	for ref, want := range map[string]sandbox.Code{"here": "", "sn-1": "", "early": sandbox.CodeConflict, "there": sandbox.CodeUnavailable, "none": sandbox.CodeNotFound, "../x": sandbox.CodeInvalid} {
		s, err := r.Snapshots.Source(t.Context(), coretest.Acme, ref)
		if sandbox.CodeOf(err) != want {
			t.Errorf("%q: the error is %v, want the code %q", ref, err, want)
		}
		if err == nil && s.ID != "sn-1" {
			t.Errorf("%q is %s, want sn-1", ref, s.ID)
		}
	}
	_, err := r.Snapshots.Source(t.Context(), coretest.Rival, "here")
	coretest.WantCode(t, err, sandbox.CodeNotFound)
}

// A snapshot is looked for only where it can be, so that one of another account is
// not taken for damaged.
func TestKept(t *testing.T) {
	for _, tt := range []struct {
		name string
		s    store.Snapshot
		kept bool // the provider finds it by its id
		code sandbox.Code
		lost bool
	}{
		{name: "with a reference", s: store.Snapshot{Snapshot: durable.Snapshot{Memory: true}}},
		{name: "of another provider", s: store.Snapshot{Snapshot: durable.Snapshot{Provider: "e2b"}}, code: sandbox.CodeInvalid},
		{name: "of another account", s: store.Snapshot{Snapshot: durable.Snapshot{Provider: sandboxtest.Provider}, Binding: "account-2"}, code: sandbox.CodeUnavailable, lost: true},
		{name: "of another node, fetched", s: store.Snapshot{Node: "there"}, kept: true},
		{name: "of another node, not fetched", s: store.Snapshot{Node: "there"}, code: sandbox.CodeNotFound, lost: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{}
			if tt.kept {
				p.Kept = []driver.FoundSnapshot{coretest.SnapshotOf("sn-1", false)}
			}
			r := sandboxtest.Open(t, p)
			tt.s.ID, tt.s.Owner = "sn-1", "sb-1"
			r.Save(t, coretest.Acme, tt.s, true)
			be, err := r.Providers.Backend(t.Context(), "")
			coretest.OK(t, err)
			ref, err := r.Snapshots.Kept(t.Context(), be, &store.Sandbox{Rest: store.Rest{Kept: "sn-1"}})
			coretest.WantCode(t, err, tt.code)
			if lost := errors.Is(err, driver.ErrSnapshotLost); lost != tt.lost {
				t.Errorf("the error says that it is lost: %v, want %v", lost, tt.lost)
			}
			if err == nil && ref != coretest.Ref("sn-1", tt.s.Memory) {
				t.Errorf("the reference is %+v, want %+v", ref, coretest.Ref("sn-1", tt.s.Memory))
			}
		})
	}
}

// A sweep removes snapshots that were never finished and data without a record. A
// provider that cannot list its snapshots loses none.
func TestSweep(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails map[string]error
		code  sandbox.Code
		left  []string
		did   []string
	}{
		{"all are listed", nil, "", []string{"sn-1", "sn-3", "sn-5"}, []string{"remove sn-2", "remove sn-4"}},
		{"the list is not complete", map[string]error{"snapshots": errAway}, sandbox.CodeUnavailable, []string{"sn-1", "sn-2", "sn-3", "sn-5"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{Fails: tt.fails}
			for _, id := range []string{"sn-1", "sn-2", "sn-3", "sn-4", "sn-6"} {
				p.Kept = append(p.Kept, coretest.SnapshotOf(id, true))
			}
			r := sandboxtest.Open(t, p)
			r.Save(t, coretest.Acme, named("sn-1", "done"), true)
			r.Save(t, coretest.Acme, named("sn-2", "unfinished"), false)
			r.Save(t, coretest.Acme, store.Snapshot{Snapshot: durable.Snapshot{ID: "sn-3"}, Owner: "sb-1"}, false) // the sandbox decides about it
			r.Save(t, coretest.Acme, named("sn-5", "no-data"), true)
			defer r.Snapshots.Begin("sn-6")() // it is being written
			coretest.WantCode(t, r.Snapshots.Sweep(t.Context()), tt.code)
			if left := ids(t, r); !slices.Equal(left, tt.left) {
				t.Errorf("there are records of %v, want %v", left, tt.left)
			}
			if did := p.Did(); !slices.Equal(did, tt.did) {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
		})
	}
}

// Pruning leaves what is used: by sandboxes, by templates, by sessions, and what is
// not complete.
func TestPrune(t *testing.T) {
	r := sandboxtest.Open(t, &coretest.Provider{})
	old := map[string]string{"old": "yes"}
	for name, more := range map[string]map[string]string{"free": old, "parent": old, "early": old, "template": old, "session": {"old": "yes", durable.ArchiveLabel: "s"}, "other": nil} {
		s := named("sn-"+name, name)
		s.Labels = more
		r.Save(t, coretest.Acme, s, name != "early")
	}
	var child store.Sandbox
	child.ID, child.Origin = "sb-1", "sn-parent"
	r.Add(t, child)
	_, err := store.Write(t.Context(), r.Core.Store, func(tx *store.Tx) (store.Template, error) {
		return tx.Templates().Set(t.Context(), store.Template{Template: durable.Template{Name: "base", Tag: "latest", Snapshot: "sn-template"}, Tenant: coretest.Acme})
	})
	coretest.OK(t, err)
	removed, err := r.Snapshots.PruneSnapshots(coretest.As(t, coretest.Acme, key.Write), old)
	coretest.OK(t, err)
	if len(removed) != 1 || removed[0].Name != "free" {
		t.Errorf("%+v were removed, want the one that nothing uses, free", removed)
	}
	if n := len(ids(t, r)); n != 5 {
		t.Errorf("%d are left, want 5", n)
	}
}

// Who may not, and who is another tenant, removes none; nor does anybody one that is
// being written.
func TestRemove(t *testing.T) {
	r := sandboxtest.Open(t, &coretest.Provider{Kept: []driver.FoundSnapshot{coretest.SnapshotOf("sn-1", true)}})
	r.Save(t, coretest.Acme, named("sn-1", "one"), true)
	coretest.WantCode(t, r.Snapshots.RemoveSnapshot(coretest.As(t, coretest.Acme, key.Read), "one"), sandbox.CodeDenied)
	coretest.WantCode(t, r.Snapshots.RemoveSnapshot(coretest.As(t, coretest.Rival, key.Write), "sn-1"), sandbox.CodeNotFound)
	end := r.Snapshots.Begin("sn-1")
	coretest.WantCode(t, r.Snapshots.RemoveSnapshot(coretest.As(t, coretest.Acme, key.Write), "one"), sandbox.CodeConflict)
	end()
	coretest.OK(t, r.Snapshots.RemoveSnapshot(coretest.As(t, coretest.Acme, key.Write), "one"))
	if did := r.Provider.Did(); !slices.Equal(did, []string{"remove sn-1"}) || len(ids(t, r)) != 0 {
		t.Errorf("the provider was told %q, and %v are recorded, want that its data and its record are gone", did, ids(t, r))
	}
}
