package create

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/prepare"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/control/templates"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func open(t *testing.T, p *coretest.Provider) (*Creator, *sandboxtest.Rig) {
	t.Helper()
	r := sandboxtest.Open(t, p)
	remover := &remove.Remover{Core: r.Core, Records: r.Records, Workspaces: r.Workspaces}
	hidden := secrets.New(r.Core, secrets.Config{Policies: r.Policies})
	return &Creator{
		Core: r.Core, Records: r.Records, Prepare: &prepare.Preparer{Policies: r.Policies, Snapshots: r.Snapshots, Tenants: r.Tenants},
		Remover: remover, Ends: r.Ends, Mains: &supervise.Mains{Core: r.Core, Records: r.Records, Remover: remover}, Providers: r.Providers,
		Workspaces: r.Workspaces, Snapshots: r.Snapshots, Policies: r.Policies, Profiles: profiles.New(r.Core, profiles.Config{Policies: r.Policies, Secrets: hidden}),
		Secrets: hidden, Templates: templates.New(r.Core, templates.Config{Providers: r.Providers, Snapshots: r.Snapshots}), Ports: r.Ports,
	}, r
}

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the service is away"}

// all returns the records of this node, also of those that are gone.
func all(t *testing.T, c *core.Core) []store.Sandbox {
	t.Helper()
	found, err := store.Read(t.Context(), c.Store, func(tx *store.Tx) ([]store.Sandbox, error) {
		page, _, err := tx.Sandboxes().List(t.Context(), coretest.Acme, store.Filter{States: []sandbox.State{sandbox.Creating, sandbox.Running, sandbox.Gone}}, store.Page{Limit: 100})
		return page, err
	})
	coretest.OK(t, err)
	return found
}

// What a request leaves behind: a sandbox and its record, or the record of one that
// could not be made.
func TestCreate(t *testing.T) {
	spec := sandbox.Spec{ID: "", Name: "web", Image: "host", Lifetime: sandbox.Lifetime{Timeout: time.Hour}}
	for _, tt := range []struct {
		name   string
		verbs  []key.Verb
		change func(*plan.Request)
		code   sandbox.Code
		states []sandbox.State
		ends   time.Duration
	}{
		{name: "a sandbox", states: []sandbox.State{sandbox.Running}, ends: time.Hour},
		{name: "that this daemon ends later", change: func(r *plan.Request) { r.Timeout = 2 * time.Hour }, states: []sandbox.State{sandbox.Running}, ends: 2 * time.Hour},
		{name: "without the right", verbs: []key.Verb{key.Read}, code: sandbox.CodeDenied},
		{name: "with an id", change: func(r *plan.Request) { r.Spec.ID = "sb-mine" }, code: sandbox.CodeInvalid},
		{name: "from files of the machine", change: func(r *plan.Request) { r.Spec.Image = "dir:/etc" }, code: sandbox.CodeDenied},
		{name: "with more isolation than there is", change: func(r *plan.Request) { r.Spec.Isolation = sandbox.IsolationHardware }, code: sandbox.CodeUnsupported},
		{name: "from a snapshot that there is not", change: func(r *plan.Request) { r.Spec.Snapshot = "none" }, code: sandbox.CodeNotFound},
		{name: "with a secret that there is not", change: func(r *plan.Request) { r.Spec.Secrets = []sandbox.SecretRef{{Name: "none", Mode: sandbox.SecretEnv}} }, code: sandbox.CodeNotFound},
		{name: "with a profile that there is not", change: func(r *plan.Request) { r.Spec.Network.Profile = "none" }, code: sandbox.CodeNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{}
			p.Can.Capabilities.Memory = true
			s, r := open(t, p)
			req := plan.Request{CreateRequest: sandbox.CreateRequest{Spec: spec}}
			if tt.change != nil {
				tt.change(&req)
			}
			if tt.verbs == nil {
				tt.verbs = []key.Verb{key.Write}
			}
			made, err := s.Create(coretest.As(t, coretest.Acme, tt.verbs...), req)
			coretest.WantCode(t, err, tt.code)
			var states []sandbox.State
			for _, b := range all(t, r.Core) {
				states = append(states, b.State)
			}
			if !slices.Equal(states, tt.states) {
				t.Errorf("the records are %v, want %v", states, tt.states)
			}
			did := p.Did()
			if tt.code != "" {
				if known, ok := errors.AsType[*sandbox.Error](err); !ok || known.Op == "" {
					t.Errorf("the error %v names no operation", err)
				}
				if did != nil {
					t.Errorf("the provider was told %q, want nothing", did)
				}
				return
			}
			if want := []string{"create " + string(made.ID)}; !slices.Equal(did, want) {
				t.Errorf("the provider was told %q, want %q", did, want)
			}
			if !made.Expires.Equal(coretest.Now.Add(tt.ends)) || made.Isolation != sandbox.IsolationKernel || made.Binding != sandboxtest.Binding {
				t.Errorf("it ends at %v and has the isolation %s and the binding %s, want %v, kernel and %s", made.Expires, made.Isolation, made.Binding, coretest.Now.Add(tt.ends), sandboxtest.Binding)
			}
		})
	}
}

// A request that is repeated with its key returns the first sandbox. If that could
// not be made, it makes one (see TestNeverMade); if it is gone since, the error says so.
func TestCreateAgain(t *testing.T) {
	s, r := open(t, &coretest.Provider{})
	ctx := coretest.As(t, coretest.Acme, key.Write)
	req := plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "web"}, IdempotencyKey: "k", Raw: []byte("1")}}
	first, err := s.Create(ctx, req)
	coretest.OK(t, err)
	again, err := s.Create(ctx, req)
	coretest.OK(t, err)
	if again.ID != first.ID || !again.Replayed || first.Replayed {
		t.Errorf("the second request returned %s (again: %v), want %s, again", again.ID, again.Replayed, first.ID)
	}
	other := req
	other.Raw = []byte("2")
	_, err = s.Create(ctx, other)
	coretest.WantCode(t, err, sandbox.CodeConflict)
	_, err = store.Write(t.Context(), r.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(t.Context(), coretest.Acme, first.ID, store.Expect{}, func(b *store.Sandbox) { b.State, b.Reason = sandbox.Gone, records.ReasonRemoved })
	})
	coretest.OK(t, err)
	_, err = s.Create(ctx, req)
	coretest.WantCode(t, err, sandbox.CodeGone)
}

// Whether a failed attempt may be made again, and what is said of one that may not.
func TestNeverMade(t *testing.T) {
	for _, tt := range []struct {
		state  sandbox.State
		reason string
		want   bool
	}{
		{sandbox.Gone, records.ReasonUnmade, true},
		{sandbox.Gone, records.ReasonUnfinished, true},
		{sandbox.Gone, records.ReasonRemoved, false},
		{sandbox.Creating, records.ReasonUnfinished, false},
		{sandbox.Running, "", false},
	} {
		var b store.Sandbox
		b.State, b.Reason = tt.state, tt.reason
		if got := neverMade(&b); got != tt.want {
			t.Errorf("neverMade of one that is %s (%q) is %v, want %v", tt.state, tt.reason, got, tt.want)
		}
	}
}

// All copies are made, or none is left: of the others, their records say so.
func TestFork(t *testing.T) {
	for _, tt := range []struct {
		name   string
		count  int
		record func(*store.Sandbox)
		fails  bool // the second copy cannot be made
		code   sandbox.Code
		copies map[sandbox.State]int
	}{
		{name: "two copies", count: 2, copies: map[sandbox.State]int{sandbox.Running: 2}},
		{name: "no copies", count: 0, code: sandbox.CodeInvalid},
		{name: "too many", count: 101, code: sandbox.CodeInvalid},
		{name: "one that cannot be made", count: 2, fails: true, code: sandbox.CodeUnavailable, copies: map[sandbox.State]int{sandbox.Gone: 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}}
			s, r := open(t, p)
			var b store.Sandbox
			b.ID, b.Name, b.Spec.Image, b.Labels = "sb-1", "web", "host", map[string]string{"team": "a"}
			r.Add(t, b)
			if tt.fails {
				s.Core.Fault = func(point string) error { // when the copies are recorded, their ids are known
					if point == "fork.written" {
						p.Fails = failSecond(all(t, r.Core))
					}
					return nil
				}
			}
			made, err := s.Fork(coretest.As(t, coretest.Acme, key.Write), "web", durable.ForkRequest{Count: tt.count, Prefix: "copy", Labels: map[string]string{"n": "1"}})
			coretest.WantCode(t, err, tt.code)
			got := map[sandbox.State]int{}
			for _, b := range all(t, r.Core) {
				if b.ID != "sb-1" {
					got[b.State]++
				}
			}
			for _, state := range []sandbox.State{sandbox.Running, sandbox.Gone, sandbox.Creating} {
				if got[state] != tt.copies[state] {
					t.Errorf("%d copies are %s, want %d", got[state], state, tt.copies[state])
				}
			}
			brought, ended := 0, 0
			for _, what := range p.Did() {
				if strings.HasPrefix(what, "restore ") {
					brought++
				}
				if strings.HasPrefix(what, "destroy ") {
					ended++
				}
			}
			if brought-ended != tt.copies[sandbox.Running] {
				t.Errorf("the provider made %d copies and ended %d, want %d to be left", brought, ended, tt.copies[sandbox.Running])
			}
			for _, c := range made {
				if c.Labels["team"] != "a" || c.Labels["n"] != "1" || c.Rest != (store.Rest{}) {
					t.Errorf("the copy %s has the labels %v and rests %+v, want those of its parent and of the request, and no rest", c.Name, c.Labels, c.Rest)
				}
			}
			if tt.code == "" && (made[0].Name != "copy-1" || made[1].Name != "copy-2") {
				t.Errorf("the copies are %s and %s, want copy-1 and copy-2", made[0].Name, made[1].Name)
			}
		})
	}
}

// failSecond returns the failures of a provider that cannot make one of the copies.
func failSecond(recorded []store.Sandbox) map[string]error {
	for _, b := range recorded {
		if b.Name == "copy-2" {
			return map[string]error{"restore " + string(b.ID): errAway}
		}
	}
	return nil
}

// A copy is one sandbox of several with one key. That none is missing is checked.
func TestAllThere(t *testing.T) {
	one := func(state sandbox.State) (b store.Sandbox) {
		b.State = state
		return b
	}
	for _, tt := range []struct {
		name string
		made []store.Sandbox
		want sandbox.Code
	}{
		{"all", []store.Sandbox{one(sandbox.Running), one(sandbox.Paused)}, ""},
		{"one is missing", []store.Sandbox{one(sandbox.Running)}, sandbox.CodeUnavailable},
		{"one is gone", []store.Sandbox{one(sandbox.Running), one(sandbox.Gone)}, sandbox.CodeGone},
	} {
		if err := allThere(tt.made, 2); sandbox.CodeOf(err) != tt.want || (err == nil) != (tt.want == "") {
			t.Errorf("%s: the error is %v, want the code %q", tt.name, err, tt.want)
		}
	}
}

// node is the one provider of a daemon, as a node that takes sandboxes as far as the
// daemon remembers.
type node struct{}

func (node) Known() []catalog.Provider { return []catalog.Provider{{Name: sandboxtest.Provider}} }
func (node) Any() bool                 { return true }
func (node) Find(name string) (catalog.Provider, bool) {
	return node{}.Known()[0], name == sandboxtest.Provider
}
func (node) Candidates(string, int64) []catalog.Facts { return nil }
func (node) Reload(context.Context) error             { return nil }
func (node) Lends(context.Context, string, string) bool {
	return false
}

func (node) Choose(string, int64, sandbox.Isolation) (provider, why string) {
	return sandboxtest.Provider, "it is the only one"
}

// A node that another daemon has cordoned meanwhile gets no sandboxes, and no copies
// of those that it has.
func TestCordonedNode(t *testing.T) {
	for _, tt := range []struct {
		state store.FleetState
		code  sandbox.Code
		count int // of records afterwards
	}{{store.FleetActive, "", 3}, {store.FleetCordoned, sandbox.CodeUnavailable, 1}} {
		t.Run(string(tt.state), func(t *testing.T) {
			p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}}
			s, r := open(t, p)
			s.Providers = providers.New(r.Core, providers.Config{
				Default: providers.Opened{Name: sandboxtest.Provider, Binding: sandboxtest.Binding, Engine: engine.Config{Provider: p}}, Nodes: node{},
			})
			var b store.Sandbox
			b.ID, b.Name, b.Spec.Image = "sb-1", "web", "host"
			r.Add(t, b)
			coretest.OK(t, r.Core.Store.Update(t.Context(), func(tx *store.Tx) error {
				if err := tx.Operator().AddFleetNode(t.Context(), sandboxtest.Provider, "https://node.example.com"); err != nil {
					return err
				}
				_, err := tx.Operator().ChangeFleetNode(t.Context(), sandboxtest.Provider, func(n *store.FleetNode) error {
					n.State = tt.state
					return nil
				})
				return err
			}))
			ctx := coretest.As(t, coretest.Acme, key.Write)
			_, err := s.Create(ctx, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Image: "host"}}})
			coretest.WantCode(t, err, tt.code)
			_, err = s.Fork(ctx, "web", durable.ForkRequest{Count: 1})
			coretest.WantCode(t, err, tt.code)
			if n := len(all(t, r.Core)); n != tt.count {
				t.Errorf("there are %d records, want %d: that of web and those of what was made", n, tt.count)
			}
		})
	}
}
