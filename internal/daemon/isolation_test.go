package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/mcpserver"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// walls is a daemon with the providers soft (the default, a kernel), bare (none)
// and hard (hardware), and a policy file.
type walls struct {
	*atoll.Client
	machine *daemontest.Machine
	daemon  *daemon.Daemon
	worlds  map[string]*fake.World
	gives   map[string]sandbox.Isolation
	policy  string
	shared  []string // with callers who have a key
}

func newWalls(t *testing.T) *walls {
	t.Helper()
	w := &walls{
		machine: daemontest.New(t), shared: []string{"bare"}, worlds: map[string]*fake.World{}, policy: filepath.Join(t.TempDir(), "policy.yaml"),
		gives: map[string]sandbox.Isolation{"soft": sandbox.IsolationKernel, "bare": sandbox.IsolationNone, "hard": sandbox.IsolationHardware},
	}
	for name := range w.gives {
		w.worlds[name] = new(fake.World)
	}
	w.demand(t, "other", "none")
	w.start(t)
	return w
}

// start starts the daemon, again with what the providers give now.
func (w *walls) start(t *testing.T) {
	t.Helper()
	entry := func(name string) providerset.Entry {
		return providerset.Entry{Name: name, Open: func(h providerset.Host) (driver.Provider, error) {
			return fake.New(fake.Options{World: w.worlds[name], Binding: name, Limited: true, SnapshotDir: h.Snapshots, Isolation: w.gives[name]}), nil
		}}
	}
	if w.daemon != nil {
		mustClose(t, w.daemon)
	}
	w.daemon = w.machine.Start(t, func(o *daemon.Options) {
		o.Providers, o.Policies = []providerset.Entry{entry("soft"), entry("bare"), entry("hard")}, w.policy
		o.SharedProviders = w.shared
		o.E2B.Listen, o.Bridge.Listen = "127.0.0.1:0", "127.0.0.1:0"
	})
	w.Client = daemontest.Client(t, w.daemon)
}

// demand writes a policy for sandboxes with a label.
func (w *walls) demand(t *testing.T, label, least string) {
	t.Helper()
	text := "policies:\n  - name: wall\n    labels: {kind: " + label + "}\n    isolation: " + least + "\n"
	if err := os.WriteFile(w.policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if w.daemon != nil {
		if err := w.daemon.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// refusedFor wants a typed refusal, by a rule or because of the isolation.
func refusedFor(t *testing.T, what string, err error, rule string, words ...string) {
	t.Helper()
	e, ok := errors.AsType[*sandbox.Error](err)
	code := sandbox.CodeUnsupported
	if rule != "" {
		code = sandbox.CodeDenied
	}
	if !ok || e.Code != code || e.Rule != rule || e.Subject != "isolation" || e.Hint == "" && rule == "" {
		t.Errorf("%s: %+v", what, err)
		return
	}
	for _, word := range words {
		if !strings.Contains(e.Message, word) {
			t.Errorf("%s: %q does not say %q", what, e.Message, word)
		}
	}
}

// The default provider makes what it is strong enough for. Else another one does
// and says why, and a provider that is named is never replaced.
func TestIsolationSelectsTheProvider(t *testing.T) {
	w := newWalls(t)
	for _, tt := range []struct {
		provider string
		demand   sandbox.Isolation
		want     string // empty: refused
	}{
		{"", "", "soft"},
		{"", sandbox.IsolationNone, "soft"},
		{"", sandbox.IsolationKernel, "soft"},
		{"", sandbox.IsolationHardware, "hard"},
		{"bare", "", "bare"},
		{"bare", sandbox.IsolationNone, "bare"},
		{"bare", sandbox.IsolationKernel, ""},
		{"soft", sandbox.IsolationHardware, ""},
		{"hard", sandbox.IsolationKernel, "hard"},
	} {
		what := tt.provider + " with " + string(tt.demand)
		s, err := w.Create(t.Context(), sandbox.Spec{Provider: tt.provider, Isolation: tt.demand}, atoll.CreateOptions{})
		if tt.want == "" {
			refusedFor(t, what, err, "", "the provider "+tt.provider+" gives "+string(w.gives[tt.provider]))
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		info := s.Info()
		moved := tt.provider == "" && tt.want != "soft"
		if info.Provider != tt.want || info.Isolation != w.gives[tt.want] || moved != strings.Contains(info.Reason, "the default provider soft gives kernel, and isolation hardware is demanded") {
			t.Errorf("%s: made by %s with %s, because %q; want %s", what, info.Provider, info.Isolation, info.Reason, tt.want)
		}
	}
	for _, s := range sandboxes(t, w.Client) {
		if s.Isolation != w.gives[s.Provider] {
			t.Errorf("the list says %s of a sandbox of %s", s.Isolation, s.Provider)
		}
	}
	_, err := w.Create(t.Context(), sandbox.Spec{Isolation: "vm"}, atoll.CreateOptions{})
	if sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a word that is none: %v", err)
	}

	w.gives["hard"] = sandbox.IsolationNone // as with an emulated processor
	w.start(t)
	_, err = w.Create(t.Context(), sandbox.Spec{Isolation: sandbox.IsolationHardware}, atoll.CreateOptions{})
	refusedFor(t, "none is strong enough", err, "", "soft gives kernel", "bare gives none", "hard gives none")
}

// A caller with a key only gets providers that are shared: the demand is no way
// around that.
func TestAttackIsolationOpensNoProvider(t *testing.T) {
	w := newWalls(t)
	key, err := w.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "exec", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	agent := daemontest.Bearer(t, w.daemon, key.Token)
	_, err = agent.Create(t.Context(), sandbox.Spec{Isolation: sandbox.IsolationHardware}, atoll.CreateOptions{})
	refusedFor(t, "a key", err, "")
	if err != nil && strings.Contains(err.Error(), "hard:") {
		t.Errorf("it names a provider that is not shared: %v", err)
	}
	if s, err := agent.Create(t.Context(), sandbox.Spec{Isolation: sandbox.IsolationKernel}, atoll.CreateOptions{}); err != nil || s.Info().Provider != "soft" {
		t.Errorf("what the default gives: %v", err)
	}
}

// A policy demands a minimum: requests that leave the isolation out get it, and
// no request gets less.
func TestAttackIsolationOfAPolicy(t *testing.T) {
	w, walled := newWalls(t), map[string]string{"kind": "walled"}
	plain, err := w.Create(t.Context(), sandbox.Spec{Name: "plain"}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.demand(t, "walled", "hardware")
	s, err := w.Create(t.Context(), sandbox.Spec{Name: "walled", Labels: walled}, atoll.CreateOptions{})
	if err != nil || s.Info().Provider != "hard" || s.Info().Isolation != sandbox.IsolationHardware {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, least := range []sandbox.Isolation{sandbox.IsolationNone, sandbox.IsolationKernel} {
		_, err := w.Create(t.Context(), sandbox.Spec{Labels: walled, Isolation: least}, atoll.CreateOptions{})
		refusedFor(t, "less by the spec: "+string(least), err, "wall.isolation", "at least hardware")
	}
	_, err = w.Create(t.Context(), sandbox.Spec{Labels: walled, Provider: "soft"}, atoll.CreateOptions{})
	refusedFor(t, "a weak provider by name", err, "", "soft gives kernel")

	// A copy cannot shed the label and move; one that gets the label must be strong enough.
	copies, err := s.Fork(t.Context(), durable.ForkRequest{Count: 1, Labels: map[string]string{"kind": "free"}})
	if err != nil || copies[0].Info().Provider != "hard" || copies[0].Info().Isolation != sandbox.IsolationHardware {
		t.Errorf("a copy: %+v, %v", copies, err)
	}
	_, err = plain.Fork(t.Context(), durable.ForkRequest{Count: 1, Labels: walled})
	refusedFor(t, "a copy of a weaker sandbox", err, "", "gives kernel, and hardware is demanded")
	_, err = plain.Update(t.Context(), sandbox.Change{Labels: map[string]*string{"kind": new("walled")}})
	refusedFor(t, "a label later", err, "wall.isolation")

	// A snapshot of the sandbox demands what the sandbox did.
	snap, err := s.Snapshot(t.Context(), durable.SnapshotRequest{Name: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.Create(t.Context(), sandbox.Spec{Snapshot: snap.Name, Isolation: sandbox.IsolationNone}, atoll.CreateOptions{}); err != nil || r.Info().Isolation != sandbox.IsolationHardware {
		t.Errorf("restored: %v", err)
	}
	_, err = w.Create(t.Context(), sandbox.Spec{Snapshot: snap.Name, Isolation: sandbox.IsolationNone, Labels: walled}, atoll.CreateOptions{})
	if err != nil {
		refusedFor(t, "less by a snapshot", err, "wall.isolation")
	}

	// A sandbox that was stopped does not start again behind less.
	if _, err := s.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	w.gives["hard"] = sandbox.IsolationNone
	w.start(t)
	s, err = w.Get(t.Context(), "walled")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Start(t.Context())
	refusedFor(t, "started again", err, "wall.isolation")
	w.demand(t, "nothing", "none")
	_, err = s.Start(t.Context())
	refusedFor(t, "started again without the policy", err, "", "gives none, and hardware is demanded")
	_, err = w.Create(t.Context(), sandbox.Spec{Snapshot: snap.Name}, atoll.CreateOptions{})
	refusedFor(t, "restored behind less", err, "", "gives none")
	if info := wantState(t, w.Client, "walled", sandbox.Stopped); info.Isolation != sandbox.IsolationHardware {
		t.Errorf("it is %+v", info)
	}
}

// A session keeps its demand, wherever its sandbox is made again.
func TestAttackIsolationOfASession(t *testing.T) {
	w := newWalls(t)
	s := openSession(t, w.Client, sandbox.Spec{Isolation: sandbox.IsolationHardware}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "mkdir -p /workspace; echo kept > /workspace/note")
	if r := s.Receipt(); r.Provider != "hard" {
		t.Fatalf("made by %s", r.Provider)
	}
	for _, target := range []string{"soft", "bare", "default"} {
		out, err := s.Swap(t.Context(), target)
		if err == nil && (out.Swapped || !strings.Contains(out.Reason, "isolation hardware is needed")) {
			t.Errorf("moved to %s: %+v", target, out)
		}
	}
	doc, err := s.Capabilities(t.Context())
	if err != nil || doc.Isolation != sandbox.IsolationHardware {
		t.Errorf("its document says %q, %v", doc.Isolation, err)
	}
	// Sessions of a group share a sandbox, and so its isolation.
	openSession(t, w.Client, sandbox.Spec{}, atoll.SessionOptions{Name: "weak", Group: "shared"})
	if _, err := w.Sessions().Create(t.Context(), sandbox.Spec{Isolation: sandbox.IsolationHardware}, atoll.SessionOptions{Group: "shared"}); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a session that demands more than its group: %v", err)
	}

	// An envelope names a sandbox that is weaker than it demands.
	weak, err := w.Create(t.Context(), sandbox.Spec{Name: "loose"}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Envelope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	forged := e
	forged.Binding = strings.Replace(e.Binding, "/hard", "/soft", 1)
	forged.Backend, forged.Sandbox, forged.State, forged.Archive = "soft", string(weak.ID()), nil, nil
	_, err = w.Sessions().Resume(t.Context(), forged, atoll.SessionOptions{})
	refusedFor(t, "an envelope of a weaker sandbox", err, "", "soft gives kernel")

	// Neither does a provider that is named for the rebuilt sandbox.
	if err := w.Sessions().Remove(t.Context(), s.ID()); err != nil {
		t.Fatal(err)
	}
	rebuilt := e
	rebuilt.Sandbox, rebuilt.State, rebuilt.Archive, rebuilt.Workspaces = "", json.RawMessage(nil), nil, nil
	_, err = w.Sessions().Resume(t.Context(), rebuilt, atoll.SessionOptions{Provider: "soft"})
	refusedFor(t, "resumed on a weaker provider", err, "", "soft gives kernel")

	// A policy holds for sessions that demand nothing themselves.
	w.demand(t, "walled", "hardware")
	t.Run("policy", func(t *testing.T) {
		p := openSession(t, w.Client, sandbox.Spec{}, atoll.SessionOptions{Name: "walled", Labels: map[string]string{"kind": "walled"}})
		if r := p.Receipt(); r.Provider != "hard" {
			t.Errorf("made by %s", r.Provider)
		}
		if out, err := p.Swap(t.Context(), "soft"); err == nil && (out.Swapped || !strings.Contains(out.Reason, "isolation hardware is needed")) {
			t.Errorf("it moved: %+v", out)
		}
	})
}

// TestAttackIsolationThroughOtherAPIs: the E2B API, the bridge and MCP know no
// isolation, and the policies of the tenant hold there as well.
func TestAttackIsolationThroughOtherAPIs(t *testing.T) {
	w := newWalls(t)
	text := "policies:\n  - {name: wall, isolation: hardware}\n"
	if err := os.WriteFile(w.policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	faces := map[string]func(t *testing.T) (made bool){
		"E2B": func(t *testing.T) bool {
			key, _ := keyWith(t, w.daemon, "read", "exec", "write")
			c := e2bClient{t, w.daemon.E2B().String()}
			return c.call("POST", "/sandboxes", `{"templateID":"base","metadata":{"isolation":"none"}}`, "X-API-Key", key).status < 300
		},
		"bridge": func(t *testing.T) bool {
			c := bridgeClient{e2bClient{t, w.daemon.Bridge().String()}, tokenOf(t, w.daemon, "", "read", "exec", "write")}
			return c.do("PUT", c.create()+"/file/workspace/x", "x").status < 300 // its sandbox is made when it is used
		},
		"MCP": func(t *testing.T) bool {
			s := httptest.NewServer(mcpserver.New(w.Client, "test").Handler())
			t.Cleanup(s.Close)
			client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: s.URL, HTTPClient: &http.Client{Transport: bearing(tokenOf(t, w.daemon, "", "read", "exec", "write"))},
			}, nil)
			ok(t, err)
			t.Cleanup(func() { _ = session.Close() })
			got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_create", Arguments: map[string]any{}})
			ok(t, err)
			return !got.IsError
		},
	}
	for _, shared := range []bool{false, true} {
		w.shared = []string{"bare"}
		if shared {
			w.shared = []string{"bare", "hard"}
		}
		w.start(t)
		for name, create := range faces {
			t.Run(fmt.Sprintf("%s, shared %v", name, shared), func(t *testing.T) {
				// The bridge demands a user, which the fakes do not have.
				if made := create(t); made != (shared && name != "bridge") {
					t.Errorf("made: %v", made)
				}
			})
		}
	}
	all := sandboxes(t, w.Client)
	for _, s := range all {
		if s.Provider != "hard" || s.Isolation != sandbox.IsolationHardware {
			t.Errorf("%s of %s has %s", s.Name, s.Provider, s.Isolation)
		}
	}
	if len(all) != len(faces)-1 {
		t.Errorf("there are %d sandboxes", len(all))
	}
}
