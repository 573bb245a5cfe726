package sessions

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

var errBroken = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the connection broke"}

// A session moves with its files, or stays as it was: after an error one sandbox is left,
// which is the old one.
func TestSwap(t *testing.T) {
	for _, tt := range []struct {
		name    string
		spec    sandbox.Spec
		target  string
		prepare func(*rig)

		code   sandbox.Code
		reason string
		moved  bool
		left   string // the sandboxes after it
		did    string
	}{
		{name: "to another provider", target: "two", moved: true, left: "sb-2", did: "reach sb-1, make two instead of sb-1, reach sb-2, destroy sb-1"},
		{name: "to where it is", target: "one", left: "sb-1", did: "reach sb-1"},
		{name: "to the default, where it is", target: "default", left: "sb-1", did: "reach sb-1"},
		{name: "to the provider of its Spec", spec: sandbox.Spec{Provider: "one"}, target: "session", left: "sb-1", did: "reach sb-1"},
		{name: "to a provider that there is not", target: "three", code: sandbox.CodeInvalid, left: "sb-1"},
		{name: "to one that the caller may not choose", target: "two", prepare: func(r *rig) { r.denied["two"] = true }, code: sandbox.CodeDenied, left: "sb-1"},
		{name: "to one that is away", target: "two", prepare: func(r *rig) { r.listed[1].Available, r.listed[1].Problem = false, "no answer" }, reason: "no answer", left: "sb-1"},
		{name: "to one without its image", target: "two", prepare: func(r *rig) { r.fail("image two", errFull) }, reason: "no space", left: "sb-1"},
		{name: "with workspaces", spec: sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "data"}, {Name: "books", Path: "/books", Mode: sandbox.WorkspaceRead}}}, target: "two", moved: true, left: "sb-2", did: "reach sb-1, persist data, make two instead of sb-1, reach sb-2, destroy sb-1"},
		{name: "its workspaces cannot be saved", spec: sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "data"}}}, target: "two", prepare: func(r *rig) { r.fail("persist data", errFull) }, code: sandbox.CodeExhausted, left: "sb-1", did: "reach sb-1"},
		{name: "its workspaces are in a bucket", spec: sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "data"}}}, target: "two", prepare: func(r *rig) { r.fail("persist data", &sandbox.Error{Code: sandbox.CodeUnsupported}) }, moved: true, left: "sb-2", did: "reach sb-1, make two instead of sb-1, reach sb-2, destroy sb-1"},
		{name: "no sandbox can be made there", target: "two", prepare: func(r *rig) { r.fail("make two", errFull) }, code: sandbox.CodeExhausted, left: "sb-1", did: "reach sb-1"},
		{name: "its files cannot be read", target: "two", prepare: func(r *rig) { r.fail("files sb-1", errBroken) }, code: sandbox.CodeUnavailable, left: "sb-1", did: "reach sb-1, make two instead of sb-1, destroy sb-2"},
		{name: "its files cannot be written there", target: "two", prepare: func(r *rig) { r.fail("files sb-2", errBroken) }, code: sandbox.CodeUnavailable, left: "sb-1", did: "reach sb-1, make two instead of sb-1, destroy sb-2"},
		{name: "the new one does not answer", target: "two", prepare: func(r *rig) { r.fail("reach sb-2", errAway) }, code: sandbox.CodeUnavailable, left: "sb-1", did: "reach sb-1, make two instead of sb-1, destroy sb-2"},
		{name: "the answer about the new one is lost", target: "two", prepare: func(r *rig) { r.lost["make two instead of sb-1"] = errAway }, moved: true, left: "sb-2", did: "reach sb-1, make two instead of sb-1, reach sb-2, destroy sb-1"},
		{name: "the new one can neither be used nor ended yet", target: "two", prepare: func(r *rig) { r.fail("files sb-2", errBroken); r.fail("destroy sb-2", errAway) }, code: sandbox.CodeUnavailable, left: "sb-1 sb-2", did: "reach sb-1, make two instead of sb-1"},
		{name: "the old one does not answer", target: "two", prepare: func(r *rig) { r.fail("reach sb-1", errAway) }, code: sandbox.CodeUnavailable, left: "sb-1"},
		{name: "the old one cannot be ended yet", target: "two", prepare: func(r *rig) { r.fail("destroy sb-1", errAway) }, moved: true, left: "sb-1 sb-2", did: "reach sb-1, make two instead of sb-1, reach sb-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.session(t, durable.NewSession{Name: "agent", Spec: tt.spec})
			r.listed[0].Capabilities["mounts"], r.listed[1].Capabilities["mounts"] = true, true
			r.acquire(t, "agent", "first")
			r.write(t, "sb-1", "kept")
			if tt.prepare != nil {
				tt.prepare(r)
			}
			r.done()
			got, err := r.Movers.Swap(as(t), "agent", durable.SwapRequest{Target: tt.target})
			coretest.WantCode(t, err, tt.code)
			if did := r.done(); did != tt.did {
				t.Errorf("it did %q, want %q", did, tt.did)
			}
			if !strings.Contains(got.Reason, tt.reason) || got.Reason == "" != (tt.reason == "") {
				t.Errorf("the reason is %q, want %q", got.Reason, tt.reason)
			}
			if got.Swapped != (tt.code == "" && tt.reason == "") {
				t.Errorf("the answer is %+v, want it to say that the session is there: %v", got, tt.code == "" && tt.reason == "")
			}
			if left := strings.Join(r.living(t), " "); left != tt.left {
				t.Errorf("the sandboxes %q are left, want %q", left, tt.left)
			}
			clear(r.fails)
			epoch, sb, provider := int64(1), sandbox.ID("sb-1"), "one"
			if tt.moved {
				epoch, sb, provider = 2, "sb-2", "two"
			}
			coretest.OK(t, r.Reaper.Sweep(t.Context())) // ends what could not be ended before
			if left := r.living(t); len(left) != 1 || left[0] != string(sb) {
				t.Errorf("after a sweep the sandboxes %v are left, want %s alone", left, sb)
			}
			after := r.get(t, "agent")
			if after.Lease.Epoch != epoch || after.Lease.Sandbox != sb || after.Lease.Provider != provider {
				t.Errorf("the lease is %+v, want %s of %s in epoch %d", after.Lease, sb, provider, epoch)
			}
			if holders := after.Lease.Holders; len(holders) != 1 || holders[0].ID != "first" {
				t.Errorf("the holders are %+v, want the first alone", holders)
			}
			if len(tt.spec.Workspaces) == 0 {
				if text := r.read(t, sb); text != "kept" {
					t.Errorf("its file has %q, want %q", text, "kept")
				}
			}
			if tt.moved && (after.Provider != "two" || got.Receipt.Outcome != durable.OutcomeMoved || !slices.Contains(got.Receipt.Lost, durable.LostProcesses)) {
				t.Errorf("the session is on %q with the receipt %+v, want it moved to two, without its processes", after.Provider, got.Receipt)
			}
			routed, err := r.Holders.Route(as(t), "agent", 1, true) // follows a move
			coretest.OK(t, err)
			routed.Done()
			if routed.Sandbox != sb {
				t.Errorf("a request of epoch 1 reaches %s, want %s", routed.Sandbox, sb)
			}
		})
	}
}

// Which providers a session can move to, why not, and what goes along.
func TestTargets(t *testing.T) {
	workspaces := sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "data"}}}
	for _, tt := range []struct {
		name    string
		spec    sandbox.Spec
		prepare func(*rig)
		carries string
		reason  string // empty: it fits
	}{
		{"files", sandbox.Spec{}, nil, sandbox.WorkspaceDir, ""},
		{"workspaces", workspaces, nil, "workspaces", ""},
		{"workspaces that it mounts", workspaces, func(r *rig) { r.listed[1].Capabilities = map[string]bool{"mounts": true} }, "workspaces", ""},
		{"workspaces that it neither mounts nor copies", workspaces, func(r *rig) { r.listed[1].Capabilities = nil }, "", "takes no trees of files"},
		{"files that it does not take", sandbox.Spec{}, func(r *rig) { delete(r.listed[1].Capabilities, "archive") }, "", "takes no trees of files"},
		{"a directory of the machine there", sandbox.Spec{Mounts: []sandbox.Mount{{Source: "/src", Target: sandbox.WorkspaceDir}}}, nil, "", "cannot mount directories"},
		{"the files of the machine", sandbox.Spec{}, func(r *rig) { r.listed[1].SharesFiles = true }, "", "no root file system of its own"},
		{"the directory of a person", sandbox.Spec{}, func(r *rig) { r.listed[1].SharesFiles, r.permanent["two"] = true, true }, "", "belongs to the machine's owner"},
		{"another's provider", sandbox.Spec{}, func(r *rig) { r.denied["two"] = true }, "", "for the owner of the machine only"},
		{"an image that it lacks", sandbox.Spec{Image: "debian:12"}, func(r *rig) { r.fail("image two", errFull) }, "", "no space"},
		{"another user", sandbox.Spec{User: "app"}, func(r *rig) { r.listed[1].Descriptor.RunAs = false }, "", "another user"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.session(t, durable.NewSession{Name: "agent", Spec: tt.spec})
			if tt.prepare != nil {
				tt.prepare(r)
			}
			all, err := r.Movers.Targets(as(t), "agent")
			coretest.OK(t, err)
			at := slices.IndexFunc(all, func(s durable.SessionTarget) bool { return s.Provider == "two" })
			if at < 0 {
				t.Fatalf("the targets are %+v, want two among them", all)
			}
			if got := all[at]; got.Fits != (tt.reason == "") || got.Carries != tt.carries || !strings.Contains(strings.Join(got.Reasons, "; "), tt.reason) {
				t.Errorf("two is %+v, want one that takes %q, or the reason %q", got, tt.carries, tt.reason)
			}
			if len(r.living(t)) != 0 {
				t.Errorf("asking made the sandboxes %v, want none", r.living(t))
			}
		})
	}
}

// A node that is emptied loses the sessions that another one takes.
func TestEvacuate(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(*testing.T, *rig)
		moved   int
		kept    string // why it stays
	}{
		{"a session", nil, 1, ""},
		{"one without a sandbox", func(t *testing.T, r *rig) { r.change(t, "sb-1", in(sandbox.Gone)) }, 0, ""},
		{"one on another provider", func(t *testing.T, r *rig) { r.change(t, "sb-1", func(b *store.Sandbox) { b.Provider = "two" }) }, 0, ""},
		{"no other node takes it", func(_ *testing.T, r *rig) { r.fail("place", errFull) }, 0, "no space"},
		{"its files cannot be read", func(_ *testing.T, r *rig) { r.fail("files sb-1", errBroken) }, 0, "the connection broke"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.session(t, durable.NewSession{Name: "agent"})
			r.acquire(t, "agent", "first")
			if tt.prepare != nil {
				tt.prepare(t, r)
			}
			moved, kept, err := r.Movers.Evacuate(t.Context(), "one")
			coretest.OK(t, err)
			if len(moved) != tt.moved || (len(kept) == 1) != (tt.kept != "") {
				t.Fatalf("%+v were moved and %+v kept, want %d moved, and kept because of %q", moved, kept, tt.moved, tt.kept)
			}
			if tt.kept != "" && (!strings.Contains(kept[0].Reason, tt.kept) || kept[0].Session != "agent" || kept[0].Sandbox != "sb-1") {
				t.Errorf("kept is %+v, want sb-1 of agent because of %q", kept[0], tt.kept)
			}
		})
	}
}

// A visit runs in a copy of the files elsewhere. The session stays where it is.
func TestVisit(t *testing.T) {
	for _, tt := range []struct {
		name    string
		target  string
		prepare func(*rig)
		fails   error // of what is run
		code    sandbox.Code
		visits  bool
	}{
		{"another provider", "two", nil, nil, "", true},
		{"one that fits not", "two", func(r *rig) { r.listed[1].Available = false }, nil, sandbox.CodeUnavailable, false},
		{"one that makes no sandbox", "two", func(r *rig) { r.fail("make two", errFull) }, nil, sandbox.CodeExhausted, false},
		{"its files cannot be written there", "two", func(r *rig) { r.fail("files sb-2", errBroken) }, nil, sandbox.CodeUnavailable, false},
		{"what is run fails", "two", nil, errFull, sandbox.CodeExhausted, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.session(t, durable.NewSession{Name: "agent"})
			r.acquire(t, "agent", "first")
			r.write(t, "sb-1", "kept")
			if tt.prepare != nil {
				tt.prepare(r)
			}
			visited := sandbox.ID("")
			err := r.Movers.Visit(as(t), "agent", tt.target, func(_ context.Context, id sandbox.ID) error {
				visited = id
				if text := r.read(t, id); text != "kept" {
					t.Errorf("the copy has %q, want %q", text, "kept")
				}
				r.write(t, id, "changed")
				return tt.fails
			})
			coretest.WantCode(t, err, tt.code)
			if (visited == "sb-2") != tt.visits {
				t.Errorf("it ran in %q, want in sb-2: %v", visited, tt.visits)
			}
			if left := r.living(t); !slices.Equal(left, []string{"sb-1"}) {
				t.Errorf("the sandboxes %v are left, want sb-1 alone", left)
			}
			if text := r.read(t, "sb-1"); text != "kept" {
				t.Errorf("the session has %q, want %q", text, "kept")
			}
			if l := r.get(t, "agent").Lease; l.Epoch != 1 || l.Sandbox != "sb-1" {
				t.Errorf("the lease is %+v, want sb-1 in epoch 1", l)
			}
		})
	}
}
