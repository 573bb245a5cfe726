package nodes_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/nodes"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// fleet has one node, east. It notes what is done to its sandboxes and sessions.
type fleet struct {
	core     *core.Core
	answers  bool // the node
	moved    []operator.NodeMoved
	stuck    []operator.NodeSandbox // of sessions that cannot be moved
	stays    map[string]error       // sandboxes that cannot be ended
	ended    []string               // sandboxes, with their tenants
	givenUp  []string               // providers
	reloaded int
}

// row is what the store has about the node.
func (f *fleet) row(ctx context.Context) (n store.FleetNode, err error) {
	all, err := store.Read(ctx, f.core.Store, func(tx *store.Tx) ([]store.FleetNode, error) { return tx.Operator().Fleet(ctx) })
	i := slices.IndexFunc(all, func(n store.FleetNode) bool { return n.Name == "east" })
	if err != nil || i < 0 {
		return n, errors.Join(err, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: "east", Message: "no such node"})
	}
	return all[i], nil
}

func (f *fleet) Nodes() []operator.Node {
	n, _ := f.Node("east")
	return []operator.Node{n}
}

func (f *fleet) Node(name string) (operator.Node, error) {
	if name != "east" {
		return operator.Node{}, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "no such node"}
	}
	n, err := f.row(context.Background())
	return operator.Node{Name: name, Provider: "node-east", State: operator.NodeState(n.State)}, err
}

func (f *fleet) Check(_ context.Context, name string) (operator.Node, error) {
	n, err := f.Node(name)
	if !f.answers {
		n.State = operator.NodeUnreachable
	}
	return n, err
}

func (f *fleet) Reload(context.Context) error { f.reloaded++; return nil }

func (f *fleet) Destroy(ctx context.Context, ref string) error {
	who, err := guard.Principal(ctx)
	if err == nil {
		err = f.stays[ref]
	}
	if err == nil {
		f.ended = append(f.ended, who.Tenant+"/"+ref)
	}
	return err
}

func (f *fleet) GiveUp(_ context.Context, provider string) error {
	f.givenUp = append(f.givenUp, provider)
	return nil
}

func (f *fleet) Evacuate(context.Context, string) ([]operator.NodeMoved, []operator.NodeSandbox, error) {
	return f.moved, f.stuck, nil
}

// open returns the service with the node east, in a state.
func open(t *testing.T, state store.FleetState) (*nodes.Service, *fleet) {
	t.Helper()
	w := &fleet{core: coretest.Open(t), answers: true, stays: map[string]error{}}
	coretest.OK(t, w.core.Store.Update(t.Context(), func(tx *store.Tx) error {
		if err := tx.Operator().AddFleetNode(t.Context(), "east", "https://east"); err != nil {
			return err
		}
		_, err := tx.Operator().ChangeFleetNode(t.Context(), "east", func(n *store.FleetNode) error { n.State = state; return nil })
		return err
	}))
	s := nodes.New(w.core, w)
	s.Connect(w, w)
	return s, w
}

// place records sandboxes of the tenant acme on the node.
func (f *fleet) place(t *testing.T, ids ...sandbox.ID) {
	t.Helper()
	for _, id := range ids {
		var b store.Sandbox
		b.ID, b.Provider = id, "node-east"
		coretest.Add(t, f.core, coretest.Acme, b)
	}
}

func (f *fleet) wantState(t *testing.T, want store.FleetState) {
	t.Helper()
	n, err := f.row(t.Context())
	coretest.OK(t, err)
	if n.State != want {
		t.Errorf("the node is %s, want %s", n.State, want)
	}
}

// A tenant's administrator may not see or change nodes.
func TestOnlyTheOwnerManagesNodes(t *testing.T) {
	s, w := open(t, store.FleetActive)
	ctx := coretest.As(t, coretest.Acme, key.Admin)
	yes := true
	for name, call := range map[string]func() error{
		"list":   func() error { _, err := s.Nodes(ctx); return err },
		"get":    func() error { _, err := s.Node(ctx, "east"); return err },
		"change": func() error { _, err := s.UpdateNode(ctx, "east", operator.NodeChange{Cordoned: &yes}); return err },
		"drain":  func() error { _, err := s.DrainNode(ctx, "east", true); return err },
		"remove": func() error { return s.RemoveNode(ctx, "east", true) },
	} {
		t.Run(name, func(t *testing.T) { coretest.WantCode(t, call(), sandbox.CodeDenied) })
	}
	w.wantState(t, store.FleetActive)
}

// Without nodes, the error says how to name some.
func TestWithoutNodes(t *testing.T) {
	s := nodes.New(coretest.Open(t), nil)
	_, err := s.Nodes(coretest.Owner(t))
	coretest.WantCode(t, err, sandbox.CodeNotFound)
	if known, ok := errors.AsType[*sandbox.Error](err); !ok || !strings.Contains(known.Hint, "--node") {
		t.Errorf("the error %v has no hint at --node", err)
	}
}

func TestCordon(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		name   string
		from   store.FleetState
		change *bool
		to     store.FleetState
		code   sandbox.Code
	}{
		{"an active node", store.FleetActive, &yes, store.FleetCordoned, ""},
		{"again", store.FleetCordoned, &yes, store.FleetCordoned, ""},
		{"a removed node", store.FleetRemoved, &yes, store.FleetRemoved, sandbox.CodeConflict},
		{"back", store.FleetCordoned, &no, store.FleetActive, ""},
		{"a removed node back", store.FleetRemoved, &no, store.FleetActive, ""},
		{"nothing asked", store.FleetCordoned, nil, store.FleetCordoned, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, w := open(t, tt.from)
			_, err := s.UpdateNode(coretest.Owner(t), "east", operator.NodeChange{Cordoned: tt.change})
			coretest.WantCode(t, err, tt.code)
			w.wantState(t, tt.to)
		})
	}
}

// Draining moves sessions, and ends other sandboxes only by force. It never ends
// the sandbox of a session that could not be moved.
func TestDrain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		force bool
		ended []string
		kept  []sandbox.ID
	}{
		{"kept", false, nil, []sandbox.ID{"sb-busy", "sb-plain", "sb-stays"}},
		{"by force", true, []string{"acme/sb-plain"}, []sandbox.ID{"sb-busy", "sb-stays"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, w := open(t, store.FleetActive)
			w.place(t, "sb-busy", "sb-plain", "sb-stays")
			w.stays["sb-stays"] = errors.New("its disk is full")
			w.stuck = []operator.NodeSandbox{{Tenant: coretest.Acme, Sandbox: "sb-busy", Reason: "its session is in use"}}
			out, err := s.DrainNode(coretest.Owner(t), "east", tt.force)
			coretest.OK(t, err)
			if !slices.Equal(w.ended, tt.ended) {
				t.Errorf("draining ended %q, want %q", w.ended, tt.ended)
			}
			var kept []sandbox.ID
			for _, k := range out.Kept {
				kept = append(kept, k.Sandbox)
				if k.Reason == "" {
					t.Errorf("%s is kept without a reason", k.Sandbox)
				}
			}
			slices.Sort(kept)
			if !slices.Equal(kept, tt.kept) {
				t.Errorf("draining kept %q, want %q", kept, tt.kept)
			}
			w.wantState(t, store.FleetCordoned)
		})
	}
}

func TestRemove(t *testing.T) {
	for _, tt := range []struct {
		name    string
		from    store.FleetState
		placed  []sandbox.ID
		answers bool
		lost    bool
		to      store.FleetState
		givenUp []string
		code    sandbox.Code
	}{
		{"an empty node", store.FleetActive, nil, true, false, store.FleetRemoved, nil, ""},
		{"an empty node again", store.FleetRemoved, nil, true, false, store.FleetRemoved, nil, ""},
		{"a node with a sandbox gets no new ones", store.FleetActive, []sandbox.ID{"sb-1"}, true, false, store.FleetCordoned, nil, sandbox.CodeConflict},
		{"a node that answers is not lost", store.FleetActive, []sandbox.ID{"sb-1"}, true, true, store.FleetActive, nil, sandbox.CodeConflict},
		{"a lost node", store.FleetActive, []sandbox.ID{"sb-1"}, false, true, store.FleetRemoved, []string{"node-east"}, ""},
		{"a lost node again", store.FleetRemoved, []sandbox.ID{"sb-1"}, false, true, store.FleetRemoved, []string{"node-east"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, w := open(t, tt.from)
			w.place(t, tt.placed...)
			w.answers = tt.answers
			coretest.WantCode(t, s.RemoveNode(coretest.Owner(t), "east", tt.lost), tt.code)
			w.wantState(t, tt.to)
			if !slices.Equal(w.givenUp, tt.givenUp) {
				t.Errorf("sandboxes of %q were given up, want %q", w.givenUp, tt.givenUp)
			}
		})
	}
}

// A lost node that comes back still has its old sandboxes. It gets no new ones
// before they are ended.
func TestLostNodeComesBack(t *testing.T) {
	s, w := open(t, store.FleetActive)
	w.answers = false
	coretest.OK(t, s.RemoveNode(coretest.Owner(t), "east", true))
	no := false
	_, err := s.UpdateNode(coretest.Owner(t), "east", operator.NodeChange{Cordoned: &no})
	coretest.WantCode(t, err, sandbox.CodeConflict)
	w.wantState(t, store.FleetRemoved)
	coretest.OK(t, w.core.Store.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Operator().ChangeFleetNode(t.Context(), "east", func(n *store.FleetNode) error { n.Cleared = coretest.Now; return nil })
		return err
	}))
	_, err = s.UpdateNode(coretest.Owner(t), "east", operator.NodeChange{Cordoned: &no})
	coretest.OK(t, err)
	w.wantState(t, store.FleetActive)
}
