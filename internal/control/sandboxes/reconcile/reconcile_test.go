package reconcile

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func open(t *testing.T, p *coretest.Provider) (*Reconciler, *sandboxtest.Rig) {
	t.Helper()
	r := sandboxtest.Open(t, p)
	return &Reconciler{Core: r.Core, Records: r.Records, Ends: r.Ends, Providers: r.Providers, Workspaces: r.Workspaces, Snapshots: r.Snapshots, Ports: r.Ports}, r
}

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the service is away"}

// A recorded sandbox is gone only with proof, and what the provider says of it is
// recorded.
func TestReconcileRecorded(t *testing.T) {
	killed, late := &sandbox.Exit{Code: 137, Reason: sandbox.ReasonKilled}, &sandbox.Exit{Code: 137, Reason: sandbox.ReasonLifetime}
	elsewhere := fmt.Errorf("taken: %w", driver.ErrElsewhere)
	for _, tt := range []struct {
		name   string
		record store.Sandbox // its state, reason, rest and binding
		found  driver.Found  // its state, labels and exit; no state: it is not listed
		fails  map[string]error
		state  sandbox.State
		reason string
		did    []string
	}{
		{"runs, as recorded", state(sandbox.Running), found(sandbox.Running, nil), nil, sandbox.Running, "", nil},
		{"runs, and was being created", state(sandbox.Creating), found(sandbox.Running, nil), nil, sandbox.Running, "", nil},
		{"runs, and was lost", state(sandbox.Lost), found(sandbox.Running, nil), nil, sandbox.Running, "", nil},
		{"is proved to be gone", state(sandbox.Running), driver.Found{}, nil, sandbox.Gone, "it is not there any more", nil},
		{"was never made", state(sandbox.Creating), driver.Found{}, nil, sandbox.Gone, records.ReasonUnfinished, nil},
		{"is listed, but cannot be reached", state(sandbox.Running), found(sandbox.Running, nil), map[string]error{"attach sb-1": errAway}, sandbox.Lost, "it could not be reached", nil},
		{"is not listed, but nothing proves that it is gone", state(sandbox.Running), driver.Found{}, map[string]error{"attach sb-1": errAway}, sandbox.Lost, "it could not be reached", nil},
		{"was taken by another installation", state(sandbox.Running), driver.Found{}, map[string]error{"attach sb-1": elsewhere}, sandbox.Lost, "another installation has it", nil},
		{"is still being created", state(sandbox.Creating), driver.Found{}, map[string]error{"attach sb-1": &sandbox.Error{Code: sandbox.CodeConflict}}, sandbox.Creating, "", nil},
		{"ended", state(sandbox.Running), found(sandbox.Gone, killed), nil, sandbox.Gone, "it ended: " + string(sandbox.ReasonKilled), nil},
		{"failed, and its files are there", state(sandbox.Running), found(sandbox.Failed, nil), nil, sandbox.Failed, "it ended", nil},
		{"ended with its lifetime, and remains there", state(sandbox.Running), found(sandbox.Stopped, late), nil, sandbox.Gone, records.ReasonLifetime, []string{"destroy sb-1"}},
		{"was paused on request", resting(sandbox.Paused, store.Rest{Pause: sandbox.PauseMemory}), found(sandbox.Paused, nil), nil, sandbox.Paused, "", nil},
		{"is on disk, and its end was interrupted", resting(sandbox.Paused, store.Rest{Pause: sandbox.PauseDisk, Kept: "sn-1"}), found(sandbox.Running, nil), nil, sandbox.Paused, "", []string{"destroy sb-1"}},
		{"is on disk, and nowhere else", resting(sandbox.Stopped, store.Rest{Kept: "sn-1"}), driver.Found{}, nil, sandbox.Stopped, "", nil},
		{"is of another account", of("account-2"), driver.Found{}, nil, sandbox.Lost, "its provider, account or address is not the one that the daemon works on", nil},
		{"is in an incomplete list", state(sandbox.Running), driver.Found{}, map[string]error{"list": errAway}, sandbox.Running, "", nil},
		{"was built with by a daemon that ended", state(sandbox.Running), driver.Found{State: sandbox.Running, Labels: map[string]string{engine.LabelOwner: sandboxtest.Dead}}, nil, sandbox.Gone, "the daemon that built with it ended", []string{"destroy sb-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{Fails: tt.fails}
			if tt.found.State != "" {
				tt.found.ID = "sb-1"
				p.Found = []driver.Found{tt.found}
			}
			s, r := open(t, p)
			tt.record.ID = "sb-1"
			r.Add(t, tt.record)
			if kept := tt.record.Rest.Kept; kept != "" {
				r.Save(t, coretest.Acme, store.Snapshot{Snapshot: durable.Snapshot{ID: kept, Parent: "sb-1"}, Owner: "sb-1"}, true)
			}
			if err := s.Reconcile(t.Context()); (err != nil) != (tt.fails["list"] != nil) {
				t.Errorf("the error is %v, want one only of a list that is not complete", err)
			}
			b := r.Record(t, "sb-1")
			if b.State != tt.state || b.Reason != tt.reason {
				t.Errorf("it is %s (%q), want %s (%q)", b.State, b.Reason, tt.state, tt.reason)
			}
			if did := p.Did(); !slices.Equal(did, tt.did) {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
			if tt.found.Exit != nil && (b.Exit == nil || b.Exit.Reason != tt.found.Exit.Reason) {
				t.Errorf("its exit is %+v, want that of the provider, %+v", b.Exit, tt.found.Exit)
			}
		})
	}
}

func state(s sandbox.State) store.Sandbox { return resting(s, store.Rest{}) }

func resting(s sandbox.State, rest store.Rest) (b store.Sandbox) {
	b.State, b.Rest = s, rest
	return b
}

func of(binding string) store.Sandbox {
	b := state(sandbox.Running)
	b.Provider, b.Binding = sandboxtest.Provider, binding
	return b
}

func found(s sandbox.State, exit *sandbox.Exit) driver.Found {
	return driver.Found{State: s, Exit: exit}
}

// A sandbox without a record is recorded, unless another process is responsible for
// it. One that Atoll ended is ended again, and one that ended by itself is not.
func TestReconcileUnrecorded(t *testing.T) {
	theirs := map[string]string{engine.LabelTenant: coretest.Acme, engine.LabelName: "web", engine.LabelImage: "debian:12", "team": "a"}
	gone := func(reason string) *store.Sandbox {
		b := state(sandbox.Gone)
		b.Reason = reason
		return &b
	}
	for _, tt := range []struct {
		name   string
		found  driver.Found
		record *store.Sandbox // nil: none
		taken  bool           // another sandbox has the name
		as     string         // the name of the record afterwards; empty: there is none
		state  sandbox.State
		did    []string
	}{
		{"of a tenant", driver.Found{State: sandbox.Running, Labels: theirs}, nil, false, "web", sandbox.Running, nil},
		{"whose name is taken", driver.Found{State: sandbox.Running, Labels: theirs}, nil, true, "sb-1", sandbox.Running, nil},
		{"that is paused", driver.Found{State: sandbox.Paused, Labels: theirs}, nil, false, "web", sandbox.Paused, nil},
		{"of a process without a daemon", driver.Found{State: sandbox.Running, Labels: map[string]string{engine.LabelOwner: "me", engine.LabelTenant: coretest.Acme}}, nil, false, "", "", nil},
		{"that is being created", driver.Found{State: sandbox.Creating, Labels: theirs}, nil, false, "", "", nil},
		{"that has ended", driver.Found{State: sandbox.Gone, Labels: theirs}, nil, false, "", "", nil},
		{"that was removed", driver.Found{State: sandbox.Running, Labels: theirs}, gone(records.ReasonRemoved), false, "sb-1", sandbox.Gone, []string{"destroy sb-1"}},
		{"that ended by itself", driver.Found{State: sandbox.Running, Labels: theirs}, gone("it ended: exited"), false, "sb-1", sandbox.Gone, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.found.ID = "sb-1"
			p := &coretest.Provider{Found: []driver.Found{tt.found}}
			s, r := open(t, p)
			if tt.record != nil {
				tt.record.ID = "sb-1"
				r.Add(t, *tt.record)
			}
			if tt.taken {
				b := state(sandbox.Stopped)
				b.ID, b.Name, b.Rest.Kept = "sb-2", "web", "sn-2"
				r.Add(t, b)
			}
			coretest.OK(t, s.Reconcile(t.Context()))
			b, err := r.Records.Record(t.Context(), coretest.Acme, "sb-1")
			if tt.as == "" {
				coretest.WantCode(t, err, sandbox.CodeNotFound)
				return
			}
			coretest.OK(t, err)
			if b.Name != tt.as || b.State != tt.state {
				t.Errorf("the record is %q and %s, want %q and %s", b.Name, b.State, tt.as, tt.state)
			}
			if tt.record == nil && (b.Labels["team"] != "a" || len(b.Labels) != 1 || b.Image != "debian:12" || b.Binding != sandboxtest.Binding) {
				t.Errorf("the record has the labels %v, the image %s and the binding %s, want those of the sandbox", b.Labels, b.Image, b.Binding)
			}
			if did := p.Did(); !slices.Equal(did, tt.did) {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
		})
	}
}

// A change that a daemon left unfinished is completed or undone, by what exists.
func TestFinishStep(t *testing.T) {
	disk := store.Rest{Pause: sandbox.PauseDisk, Kept: "sn-1"}
	step := func(s sandbox.State, step, kept string) store.Sandbox {
		return resting(s, store.Rest{Step: step, Kept: kept})
	}
	for _, tt := range []struct {
		name   string
		record store.Sandbox
		there  bool // the sandbox runs
		saved  bool // its snapshot is complete
		state  sandbox.State
		rest   store.Rest
		did    []string
	}{
		{"a pause in memory goes on running", step(sandbox.Pausing, records.StepPause, ""), true, false, sandbox.Running, store.Rest{}, []string{"resume sb-1"}},
		{"a pause in memory of one that is gone", step(sandbox.Pausing, records.StepPause, ""), false, false, sandbox.Gone, store.Rest{}, nil},
		{"an update tells the limits again", step(sandbox.Running, records.StepUpdate, ""), true, false, sandbox.Running, store.Rest{}, []string{"resize sb-1 to 2 CPUs", "resume sb-1"}},
		{"a pause to disk that did not end it", step(sandbox.Pausing, records.StepSleep, "sn-1"), true, true, sandbox.Running, store.Rest{}, []string{"remove sn-1", "resume sb-1"}},
		{"a pause to disk that ended it", step(sandbox.Pausing, records.StepSleep, "sn-1"), false, true, sandbox.Paused, disk, nil},
		{"a stop that ended it", step(sandbox.Pausing, records.StepStop, "sn-1"), false, true, sandbox.Stopped, store.Rest{Kept: "sn-1"}, nil},
		{"a pause to disk that wrote nothing, of one that ended", step(sandbox.Pausing, records.StepSleep, "sn-1"), false, false, sandbox.Gone, store.Rest{}, nil},
		{"a resume that brought it back", step(sandbox.Resuming, records.StepResume, "sn-1"), true, true, sandbox.Running, store.Rest{}, []string{"remove sn-1"}},
		{"a resume that did not", step(sandbox.Resuming, records.StepResume, "sn-1"), false, true, sandbox.Paused, disk, nil},
		{"a start that did not", step(sandbox.Resuming, records.StepStart, "sn-1"), false, true, sandbox.Stopped, store.Rest{Kept: "sn-1"}, nil},
		{"a copy, whose siblings may be missing", step(sandbox.Creating, records.StepFork, ""), true, false, sandbox.Gone, store.Rest{}, []string{"destroy sb-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{}
			if tt.there {
				p.Found = []driver.Found{{ID: "sb-1", State: sandbox.Running}}
			}
			s, r := open(t, p)
			tt.record.ID, tt.record.Resources.CPUs = "sb-1", 2
			r.Add(t, tt.record)
			if tt.record.Rest.Kept != "" {
				r.Save(t, coretest.Acme, store.Snapshot{Snapshot: durable.Snapshot{ID: "sn-1", Memory: true, Parent: "sb-1"}, Owner: "sb-1"}, tt.record.State == sandbox.Resuming)
			}
			if tt.saved {
				p.Kept = []driver.FoundSnapshot{coretest.SnapshotOf("sn-1", true)}
			}
			coretest.OK(t, s.Reconcile(t.Context()))
			b := r.Record(t, "sb-1")
			if b.State != tt.state || b.Rest != tt.rest && b.State != sandbox.Gone {
				t.Errorf("it is %s and rests %+v, want %s and %+v", b.State, b.Rest, tt.state, tt.rest)
			}
			did := p.Did()
			did = slices.DeleteFunc(did, func(what string) bool { return what == "remove sn-1" && b.State == sandbox.Gone })
			if did = slices.Compact(did); !slices.Equal(did, tt.did) {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
		})
	}
}

// Stats count what exists and is not recorded, and what is recorded and does not
// exist, and change nothing.
func TestStats(t *testing.T) {
	p := &coretest.Provider{Found: []driver.Found{
		{ID: "sb-1", State: sandbox.Running},
		{ID: "sb-5", State: sandbox.Running},
		{ID: "sb-6", State: sandbox.Running, Labels: map[string]string{engine.LabelOwner: "me"}},
		{ID: "sb-7", State: sandbox.Creating},
	}}
	s, r := open(t, p)
	for id, b := range map[sandbox.ID]store.Sandbox{
		"sb-1": state(sandbox.Running), "sb-2": state(sandbox.Running), "sb-3": resting(sandbox.Stopped, store.Rest{Kept: "sn-1"}), "sb-4": of("account-2"),
	} {
		b.ID = id
		r.Add(t, b)
	}
	got, err := s.Stats(t.Context())
	coretest.OK(t, err)
	if len(got.Running) != 1 || !slices.Equal(got.Unrecorded, []sandbox.ID{"sb-5"}) || !slices.Equal(got.Missing, []sandbox.ID{"sb-2"}) || !slices.Equal(got.Unreachable, []sandbox.ID{"sb-4"}) {
		t.Errorf("got %+v, want sb-1 running, sb-5 not recorded, sb-2 missing and sb-4 unreachable", got)
	}
	if b := r.Record(t, "sb-2"); b.State != sandbox.Running {
		t.Errorf("the missing sandbox is %s afterwards, want what it was, running", b.State)
	}
}
