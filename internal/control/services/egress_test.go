package services_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/idtoken"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/secret/source"
	"github.com/atoll-run/atoll/internal/snapshotstore"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

const canary = "ghp_canary0451canary0451canary0451canary"

// told is a gateway that records its last configuration.
type told struct {
	mu    sync.Mutex
	seen  map[sandbox.ID]profiles.Egress
	fail  error
	heard chan sandbox.ID // if it is set, the test has to receive twice from it: before and after the configuration changes
	check func()          // is called before the rules apply; nil: nothing is
}

func (g *told) SetEgress(ctx context.Context, sb sandbox.ID, e profiles.Egress) error {
	if g.check != nil {
		g.check()
	}
	g.tell(ctx, sb)
	g.mu.Lock()
	err := g.fail
	if err == nil {
		g.seen[sb] = e
	}
	g.mu.Unlock()
	g.tell(ctx, sb)
	return err
}

func (g *told) tell(ctx context.Context, sb sandbox.ID) {
	if g.heard == nil {
		return
	}
	select {
	case g.heard <- sb:
	case <-ctx.Done():
	}
}

func (g *told) last(t *testing.T, sb sandbox.ID) profiles.Egress {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.seen[sb]
	if !ok {
		t.Fatal("the gateway was told nothing")
	}
	return e
}

// linked is a fake with a network that is linked to the gateway.
type linked struct{ *fake.Provider }

func without(spec *sandbox.Spec) *sandbox.Spec {
	own := *spec
	own.Network = sandbox.Network{}
	return &own
}

func (l linked) Probe(ctx context.Context) (driver.Facts, error) {
	facts, err := l.Provider.Probe(ctx)
	facts.Capabilities.Network = true
	return facts, err
}

func (l linked) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	return l.Provider.Create(ctx, without(spec))
}

func (l linked) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	return l.Provider.Restore(ctx, without(spec), ref)
}

type rig struct {
	*services.Services
	dir      string
	store    *store.Store
	gateway  *told
	issuer   *idtoken.Issuer
	logged   *bytes.Buffer
	owner    context.Context // the owner of the machine, acting in the tenant acme
	operator context.Context // the owner of the machine
	writer   context.Context // may make sandboxes, and nothing else
	rival    context.Context // all-powerful in another tenant
	lost     bool            // a variable of the daemon that secrets are read from
	rules    string          // the policies in their file; empty: there are none
}

func newRig(t *testing.T, fault func(point string) error) *rig {
	t.Helper()
	r := &rig{dir: t.TempDir(), gateway: &told{seen: map[sandbox.ID]profiles.Egress{}}, logged: &bytes.Buffer{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	r.store, err = store.Open(t.Context(), filepath.Join(r.dir, "atoll.db"), store.Options{})
	must(err)
	log := eventlog.New(r.store, eventlog.Options{})
	provider := linked{fake.New(fake.Options{Limited: true, SnapshotDir: filepath.Join(r.dir, "snapshots")})}
	sealer, err := secret.OpenSealer(filepath.Join(r.dir, "secret.key"))
	must(err)
	r.issuer, err = idtoken.Open(filepath.Join(r.dir, "identity.key"), nil)
	must(err)
	environments, err := snapshotstore.OpenEnvironments(filepath.Join(r.dir, "environments"), filepath.Join(r.dir, "seal.key"))
	must(err)
	r.Services = services.New(services.Config{
		Environments: environments,
		Engine:       engine.Config{Provider: provider}, Provider: "fake", Log: log,
		Config: core.Config{
			Node: "local", Store: r.store, Audit: audit.New(log, audit.Options{RecordArgs: true}),
			Logger: slog.New(slog.NewTextHandler(r.logged, nil)), Fault: fault,
		},
		Policies: policies.Files{Source: "caps.yaml", Load: func() (*policyset.Set, error) {
			return policyset.Parse(map[string][]byte{"caps.yaml": []byte(r.rules)})
		}},
		Sealer: sealer, Gateway: r.gateway, Identities: r.issuer,
		Sources: &source.Reader{LookupEnv: func(name string) (string, bool) { return "from-the-environment", name == "DAEMON_TOKEN" && !r.lost }},
	})
	t.Cleanup(func() {
		must(r.Services.Close())
		must(log.Close())
		must(r.store.Close())
		must(provider.Close())
	})
	for _, tenant := range []string{"acme", "rival", key.DefaultTenant} {
		must(r.store.Update(t.Context(), func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(t.Context(), tenant); return err }))
	}
	r.owner = guard.WithPrincipal(t.Context(), key.Peer("acme", 0))
	r.operator = guard.WithPrincipal(t.Context(), key.Peer(key.DefaultTenant, 0))
	r.writer = guard.WithPrincipal(t.Context(), key.Principal{Tenant: "acme", Key: "w", Verbs: []key.Verb{key.Write, key.Read, key.Exec}})
	r.rival = guard.WithPrincipal(t.Context(), key.Principal{Tenant: "rival", Key: "r", Verbs: []key.Verb{key.Admin}})
	return r
}

func (r *rig) secret(t *testing.T, name string, change func(*durable.NewSecret)) {
	t.Helper()
	n := durable.NewSecret{Name: name, Hosts: []string{"api.example.com"}}
	if change != nil {
		change(&n)
	}
	if n.Source == "" {
		n.Value = []byte(canary)
	}
	if _, err := r.Secrets.Create(r.owner, n); err != nil {
		t.Fatal(err)
	}
}

// env returns the environment of the sandbox as a command in it sees it.
func (r *rig) env(t *testing.T, name string) string {
	t.Helper()
	sb, err := r.Exec.Open(r.owner, name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Exec(r.owner, sandbox.Command{Args: []string{"env"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(p.Stdout()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func wants(t *testing.T, what string, err error, code sandbox.Code) {
	t.Helper()
	if sandbox.CodeOf(err) != code {
		t.Errorf("%s: got %v, want %q", what, err, code)
	}
	if err != nil && strings.Contains(err.Error(), canary) {
		t.Errorf("%s: the error shows the value", what)
	}
}

func injecting(name, secret string, hosts ...string) sandbox.Profile {
	return sandbox.Profile{Name: name, Rules: []sandbox.Rule{{
		Action: sandbox.Allow, Hosts: hosts, Inject: []sandbox.Injection{{Secret: secret, Mode: sandbox.InjectBearer}},
	}}}
}

// A sandbox gets a placeholder and the gateway the value, and nothing else in
// the world has it.
func TestSecretsStayWithTheGateway(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "github", nil)
	spec := sandbox.Spec{
		Name: "box", Network: sandbox.Network{Egress: []string{"api.example.com", "cdn.example.com"}},
		Secrets: []sandbox.SecretRef{{Name: "github", Env: "GITHUB_TOKEN", In: []string{"header:authorization"}}},
	}
	made, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: spec}})
	if err != nil {
		t.Fatal(err)
	}
	env := r.env(t, "box")
	e, err := r.Profiles.Egress(t.Context(), made.ID)
	if err != nil || len(e.Secrets) != 1 {
		t.Fatalf("%+v %v", e, err)
	}
	s := e.Secrets[0]
	if string(s.Value.Reveal()) != canary || s.SwapHosts[0] != "api.example.com" || s.Version != 1 || !strings.HasPrefix(s.Placeholder, "ghp_") {
		t.Errorf("the gateway has %+v", s)
	}
	if !strings.Contains(env, "GITHUB_TOKEN="+s.Placeholder+"\n") || strings.Contains(env, canary) {
		t.Errorf("the sandbox has %q", env)
	}
	other, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "other", Network: spec.Network, Secrets: spec.Secrets}}})
	if err != nil {
		t.Fatal(err)
	}
	if e2, err := r.Profiles.Egress(t.Context(), other.ID); err != nil || e2.Secrets[0].Placeholder == s.Placeholder {
		t.Errorf("two sandboxes share a placeholder: %v", err)
	}
	if err := r.Profiles.SecretUsed(t.Context(), made.ID, profiles.SecretUse{Secret: "github", Version: 1, Rule: "egress", Host: "api.example.com"}); err != nil {
		t.Error(err)
	}
	r.scan(t, made.ID)
}

// scan looks for the value wherever anything is written down.
func (r *rig) scan(t *testing.T, sb sandbox.ID) {
	t.Helper()
	events, err := r.Events.Events(r.owner, sandbox.EventQuery{Page: 1000})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(events)
	if err != nil {
		t.Fatal(err)
	}
	used := false
	for _, e := range events {
		used = used || e.Type == eventlog.SecretUsed && e.Sandbox == sb && e.Subject == "github@1 → api.example.com" && e.Policy == "egress"
	}
	if !used {
		t.Error("the use of the secret is not on record")
	}
	stored, err := r.Secrets.List(r.owner)
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Sandboxes.Records.Get(r.owner, string(sb))
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.Profiles.Egress(t.Context(), sb)
	if err != nil {
		t.Fatal(err)
	}
	places := map[string][]byte{"events": shown, "log": r.logged.Bytes(), "list": fmt.Appendf(nil, "%+v %#v", stored, stored), "record": fmt.Appendf(nil, "%+v", b), "egress": fmt.Appendf(nil, "%+v %#v %v", e, e, e.Secrets)}
	if err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		places[path], err = os.ReadFile(path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(places) < 7 {
		t.Errorf("only %d places were looked at", len(places))
	}
	for _, form := range secret.Forms(secret.NewValue([]byte(canary))) {
		for place, text := range places {
			if bytes.Contains(text, form) {
				t.Errorf("%s holds the value as %q", place, form)
			}
		}
	}
}

// A sleeping sandbox wakes with the placeholders in its memory. A copy gets its
// own, so that the two are independent.
func TestPlaceholdersThroughLife(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "github", nil)
	r.secret(t, "open", func(n *durable.NewSecret) { n.AllowEnv = true })
	made, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{
		Name: "box", Env: map[string]string{"A": "b"}, Network: sandbox.Network{Egress: []string{"api.example.com"}},
		Secrets: []sandbox.SecretRef{{Name: "github"}, {Name: "open", Mode: sandbox.SecretEnv}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	placeholder := func(id sandbox.ID) string {
		t.Helper()
		e, err := r.Profiles.Egress(t.Context(), id)
		if err != nil || len(e.Secrets) != 1 {
			t.Fatalf("%+v %v", e, err)
		}
		return e.Secrets[0].Placeholder
	}
	first := placeholder(made.ID)
	sees := func(name, want string) {
		t.Helper()
		if env := r.env(t, name); !strings.Contains(env, "github="+want+"\n") || !strings.Contains(env, "open="+canary+"\n") || !strings.Contains(env, "A=b\n") {
			t.Errorf("%s has %q, want %s", name, env, want)
		}
	}
	sees("box", first)
	copies, err := r.Sandboxes.Creator.Fork(r.owner, "box", durable.ForkRequest{Count: 2, Prefix: "copy"})
	if err != nil {
		t.Fatal(err)
	}
	one, two := placeholder(copies[0].ID), placeholder(copies[1].ID)
	if one == first || two == first || one == two {
		t.Errorf("placeholders are shared: %s %s %s", first, one, two)
	}
	sees("copy-1", one)
	if _, err := r.Sandboxes.Pauser.Pause(r.owner, "box", true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Sandboxes.Pauser.Resume(r.owner, "box"); err != nil {
		t.Fatal(err)
	}
	if placeholder(made.ID) != first {
		t.Error("it woke with another placeholder than its memory knows")
	}
	sees("box", first)
}

// A change reaches running sandboxes, and only those that it is about.
func TestApply(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "github", nil)
	if _, err := r.Profiles.Create(r.owner, injecting("ci", "github", "api.example.com")); err != nil {
		t.Fatal(err)
	}
	one, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "one", Network: sandbox.Network{Profile: "ci"}}}})
	if err != nil {
		t.Fatal(err)
	}
	two, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "two", Network: sandbox.Network{Egress: []string{"example.org"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	changed := injecting("ci", "github", "api.example.com")
	changed.Rules = append(changed.Rules, sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"mirror.example"}})
	p, err := r.Profiles.Apply(r.owner, 1, changed)
	if err != nil || p.Version != 2 {
		t.Fatalf("%+v %v", p, err)
	}
	e := r.gateway.last(t, one.ID)
	if len(e.Profile.Rules) != 2 || len(e.Secrets) != 1 || string(e.Secrets[0].Value.Reveal()) != canary || e.Secrets[0].Placeholder != "" {
		t.Errorf("the gateway was told %+v", e)
	}
	if _, err := r.Secrets.Rotate(r.owner, "github", durable.SecretValue{Value: []byte("the-second-value")}); err != nil {
		t.Fatal(err)
	}
	if e := r.gateway.last(t, one.ID); string(e.Secrets[0].Value.Reveal()) != "the-second-value" || e.Secrets[0].Version != 2 {
		t.Errorf("after the rotation: %+v", e)
	}
	wants(t, "a profile in use", r.Profiles.Remove(r.owner, "ci"), sandbox.CodeConflict)
	wants(t, "a secret that a profile adds", r.Secrets.Remove(r.owner, "github", false), sandbox.CodeConflict)
	wants(t, "by force", r.Secrets.Remove(r.owner, "github", true), "")
	if e := r.gateway.last(t, one.ID); len(e.Secrets) != 0 {
		t.Errorf("after the removal: %+v", e)
	}
	if _, told := r.gateway.seen[two.ID]; told {
		t.Error("a sandbox was touched that has nothing to do with it")
	}
	r.gateway.fail = errors.New("the gateway is away")
	changed.Rules = changed.Rules[1:]
	p, err = r.Profiles.Apply(r.owner, 0, changed)
	wants(t, "a gateway that is away", err, sandbox.CodeUnavailable)
	if p.Version != 3 || !strings.Contains(err.Error(), "one") {
		t.Errorf("version %d, %v", p.Version, err)
	}
	r.gateway.fail = nil
	wants(t, "removing the sandbox", r.Sandboxes.Remover.Destroy(r.owner, "one"), "")
	wants(t, "a profile that was in use", r.Profiles.Remove(r.owner, "ci"), "")
}

// Rotating or removing a secret takes effect immediately for every sandbox,
// including one with inline rules and one paused in memory.
func TestSecretsOfInlineRules(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "github", nil)
	r.secret(t, "other", nil)
	own := func(name, secret string) sandbox.ID {
		t.Helper()
		p := injecting("", secret, "api.example.com")
		made, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: name, Network: sandbox.Network{Inline: &p}}}})
		if err != nil {
			t.Fatal(err)
		}
		return made.ID
	}
	runs, rests, unconcerned := own("runs", "github"), own("rests", "github"), own("unconcerned", "other")
	if _, err := r.Sandboxes.Pauser.Pause(r.owner, "rests", false); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Secrets.Rotate(r.owner, "github", durable.SecretValue{Value: []byte("the-second-value")}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []sandbox.ID{runs, rests} {
		if e := r.gateway.last(t, id); len(e.Secrets) != 1 || string(e.Secrets[0].Value.Reveal()) != "the-second-value" {
			t.Errorf("%s after the rotation: %+v", id, e)
		}
	}
	wants(t, "one that rules of a sandbox add", r.Secrets.Remove(r.owner, "github", false), sandbox.CodeConflict)
	wants(t, "by force", r.Secrets.Remove(r.owner, "github", true), "")
	for _, id := range []sandbox.ID{runs, rests} {
		if e := r.gateway.last(t, id); len(e.Secrets) != 0 {
			t.Errorf("%s after the removal: %+v", id, e)
		}
	}
	if _, told := r.gateway.seen[unconcerned]; told {
		t.Error("a sandbox was touched that has nothing to do with it")
	}
	wants(t, "all", r.Profiles.EnforceAll(t.Context()), "")
	if e := r.gateway.last(t, unconcerned); len(e.Secrets) != 1 {
		t.Errorf("after all: %+v", e)
	}
}

// If two callers configure the gateway for one sandbox, the newer configuration wins.
func TestWithEgressInTurn(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "github", nil)
	p := injecting("", "github", "api.example.com")
	made, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "box", Network: sandbox.Network{Inline: &p}}}})
	if err != nil {
		t.Fatal(err)
	}
	rotated := make(chan error, 1)
	err = r.Profiles.With(t.Context(), made.ID, func(e profiles.Egress) error {
		go func() {
			_, err := r.Secrets.Rotate(r.owner, "github", durable.SecretValue{Value: []byte("the-second-value")})
			rotated <- err
		}()
		for { // until it is stored; it then waits for us
			stored, err := r.Secrets.List(r.owner)
			if err != nil || stored[0].Version == 2 {
				return errors.Join(err, r.gateway.SetEgress(t.Context(), made.ID, e))
			}
		}
	})
	wants(t, "the earlier", errors.Join(err, <-rotated), "")
	if e := r.gateway.last(t, made.ID); string(e.Secrets[0].Value.Reveal()) != "the-second-value" {
		t.Errorf("the gateway has %+v", e)
	}
}

// A refused request leaves nothing, neither a sandbox nor a reserved name.
func TestRefusedNetworks(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "github", nil)
	r.secret(t, "anywhere", func(n *durable.NewSecret) { n.Hosts = nil })
	r.secret(t, "open", func(n *durable.NewSecret) { n.AllowEnv = true })
	inline := func(p sandbox.Profile) sandbox.Network { p.Name = ""; return sandbox.Network{Inline: &p} }
	hosts := sandbox.Network{Egress: []string{"api.example.com"}}
	for _, tt := range []struct {
		what    string
		network sandbox.Network
		refs    []sandbox.SecretRef
		want    sandbox.Code
	}{
		{"no such profile", sandbox.Network{Profile: "missing"}, nil, sandbox.CodeNotFound},
		{"no such secret", hosts, []sandbox.SecretRef{{Name: "missing"}}, sandbox.CodeNotFound},
		{"a host that is none", sandbox.Network{Egress: []string{"a b"}}, nil, sandbox.CodeInvalid},
		{"two forms", sandbox.Network{Profile: "x", Egress: []string{}}, nil, sandbox.CodeInvalid},
		{"a value in the sandbox", hosts, []sandbox.SecretRef{{Name: "github", Mode: sandbox.SecretEnv}}, sandbox.CodeDenied},
		{"a secret to another host", hosts, []sandbox.SecretRef{{Name: "github", Hosts: []string{"evil.example"}}}, sandbox.CodeInvalid},
		{"a secret to a wider host", hosts, []sandbox.SecretRef{{Name: "github", Hosts: []string{"*.example.com"}}}, sandbox.CodeInvalid},
		{"a secret to another port", hosts, []sandbox.SecretRef{{Name: "github", Hosts: []string{"api.example.com:80"}}}, sandbox.CodeInvalid},
		{"a secret that names no hosts", hosts, []sandbox.SecretRef{{Name: "anywhere", Hosts: []string{"evil.example"}}}, sandbox.CodeDenied},
		{"a place that is none", hosts, []sandbox.SecretRef{{Name: "github", In: []string{"cookie"}}}, sandbox.CodeInvalid},
		{"a rule that sends it elsewhere", inline(injecting("", "github", "evil.example")), nil, sandbox.CodeInvalid},
		{"a rule of one's own that sends it anywhere", inline(injecting("", "anywhere", "evil.example")), nil, sandbox.CodeDenied},
		{"a rule that adds what there is not", inline(injecting("", "missing", "api.example.com")), nil, sandbox.CodeInvalid},
	} {
		_, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "box", Network: tt.network, Secrets: tt.refs}}})
		wants(t, tt.what, err, tt.want)
	}
	if _, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{
		Name: "box", Network: hosts, Env: map[string]string{"A": "b"}, Secrets: []sandbox.SecretRef{{Name: "open", Mode: sandbox.SecretEnv}},
	}}}); err != nil {
		t.Fatal(err)
	}
	if env := r.env(t, "box"); !strings.Contains(env, "open="+canary+"\n") || !strings.Contains(env, "A=b\n") {
		t.Errorf("an allowed value is not there: %q", env)
	}
	all, _, err := r.Sandboxes.Reader.List(r.owner, store.Filter{}, store.Page{})
	if err != nil || len(all) != 1 {
		t.Errorf("%d sandboxes, %v", len(all), err)
	}
}

// After any failure, the profile can be removed.
func TestHalfMade(t *testing.T) {
	for _, point := range []string{"create.recorded", "create.made", "create.done"} {
		r := newRig(t, func(at string) error {
			if at == point {
				return errors.New("it ended here")
			}
			return nil
		})
		r.secret(t, "github", nil)
		if _, err := r.Profiles.Create(r.owner, injecting("ci", "github", "api.example.com")); err != nil {
			t.Fatal(err)
		}
		_, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{
			Name: "box", Network: sandbox.Network{Profile: "ci"}, Secrets: []sandbox.SecretRef{{Name: "github"}},
		}}})

		if err == nil {
			t.Fatalf("%s: nothing failed", point)
		}
		wants(t, point, r.Sandboxes.Reconciler.Reconcile(t.Context()), "")
		if err := r.Sandboxes.Remover.Destroy(r.owner, "box"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			wants(t, point, err, "")
		}
		wants(t, point, r.Profiles.Remove(r.owner, "ci"), "")
		wants(t, point, r.Secrets.Remove(r.owner, "github", false), "")
	}
}

// A caller who may only create sandboxes can change neither rules nor secrets.
// Another tenant cannot see that they exist. Only the owner of the machine may
// use its files.
func TestWhoMay(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "github", nil)
	if _, err := r.Profiles.Create(r.owner, injecting("ci", "github", "api.example.com")); err != nil {
		t.Fatal(err)
	}
	for who, ctx := range map[sandbox.Code]context.Context{sandbox.CodeDenied: r.writer, sandbox.CodeNotFound: r.rival, sandbox.CodeUnauthorized: t.Context()} {
		_, err := r.Secrets.Rotate(ctx, "github", durable.SecretValue{Value: []byte("mine-from-now-on")})
		wants(t, "rotate", err, who)
		wants(t, "remove a secret", r.Secrets.Remove(ctx, "github", true), who)
		wants(t, "remove a profile", r.Profiles.Remove(ctx, "ci"), who)
		_, err = r.Profiles.Apply(ctx, 1, sandbox.Profile{Name: "ci", Default: sandbox.Allow})
		wants(t, "apply", err, who)
		if ctx == r.writer {
			continue
		}
		_, err = r.Profiles.Get(ctx, "ci", 0)
		wants(t, "show", err, who)
		_, err = r.Profiles.Test(ctx, "ci", "GET", "https://api.example.com/")
		wants(t, "test", err, who)
		_, err = r.Sandboxes.Creator.Create(ctx, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Network: sandbox.Network{Profile: "ci"}}}})
		wants(t, "use", err, who)
		_, err = r.Sandboxes.Creator.Create(ctx, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Network: sandbox.Network{Egress: []string{}}, Secrets: []sandbox.SecretRef{{Name: "github"}}}}})
		wants(t, "use a secret", err, who)
	}
	theirs, err := r.Secrets.List(r.rival)
	rules, err2 := r.Profiles.List(r.rival)
	if err != nil || err2 != nil || len(theirs)+len(rules) != 0 {
		t.Errorf("the rival sees %v %v (%v, %v)", theirs, rules, err, err2)
	}
	for _, source := range []string{"file:/etc/passwd", "env:DAEMON_TOKEN"} {
		_, err := r.Secrets.Create(r.rival, durable.NewSecret{Name: "theirs", Source: source})
		wants(t, source, err, sandbox.CodeDenied)
	}
	r.secret(t, "outside", func(n *durable.NewSecret) { n.Source = "env:DAEMON_TOKEN" })
	made, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{
		Network: sandbox.Network{Egress: []string{"api.example.com"}}, Secrets: []sandbox.SecretRef{{Name: "outside"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := r.Profiles.Egress(t.Context(), made.ID); err != nil || string(e.Secrets[0].Value.Reveal()) != "from-the-environment" {
		t.Errorf("%+v %v", e, err)
	}
	_, err = r.Secrets.Rotate(r.owner, "outside", durable.SecretValue{Value: []byte("a value")})
	wants(t, "a value for a secret that is kept outside", err, sandbox.CodeInvalid)
	// Encrypted values of one tenant cannot be decrypted for another, even by an
	// attacker who writes to the database.
	if err := r.store.Update(t.Context(), func(tx *store.Tx) error {
		s, err := tx.Secrets().Get(t.Context(), "acme", "github")
		if err != nil {
			return err
		}
		s.Tenant = "rival"
		_, err = tx.Secrets().Create(t.Context(), s)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	_, err = r.Sandboxes.Creator.Create(r.rival, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Network: sandbox.Network{Egress: []string{}}, Secrets: []sandbox.SecretRef{{Name: "github"}}}}})
	wants(t, "a row that was moved", err, sandbox.CodeUnavailable)
}

// The network rules of a running sandbox can be changed, for it alone. A secret
// without hosts is sent only by callers who may manage secrets.
func TestSetNetwork(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "hosted", nil)
	r.secret(t, "free", func(n *durable.NewSecret) { n.Hosts = nil })
	own := func(p sandbox.Profile) sandbox.Network { return sandbox.Network{Inline: &p} }
	for _, name := range []string{"box", "other"} {
		if _, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: name, Network: sandbox.Network{Egress: []string{"a.example.com"}}}}}); err != nil {
			t.Fatal(err)
		}
	}
	b, err := r.Sandboxes.Updater.SetNetwork(r.writer, "box", own(injecting("", "hosted", "api.example.com")))
	if err != nil {
		t.Fatal(err)
	}
	if e := r.gateway.last(t, b.ID); e.Profile.Rules[0].Hosts[0] != "api.example.com" || len(e.Secrets) != 1 {
		t.Errorf("the gateway was told %+v", e.Profile)
	}
	_, err = r.Sandboxes.Updater.SetNetwork(r.writer, "box", own(injecting("", "free", "api.example.com")))
	wants(t, "a secret without hosts, by somebody who may not see to secrets", err, sandbox.CodeDenied)
	if e := r.gateway.last(t, b.ID); e.Secrets[0].Name != "hosted" {
		t.Error("what was refused took effect")
	}
	if _, err := r.Sandboxes.Updater.SetNetwork(r.owner, "box", own(injecting("", "free", "api.example.com"))); err != nil {
		t.Error(err)
	}
	_, err = r.Sandboxes.Updater.SetNetwork(r.owner, "box", own(injecting("", "missing", "api.example.com")))
	wants(t, "a secret that is not there", err, sandbox.CodeInvalid)
	_, err = r.Sandboxes.Updater.SetNetwork(r.rival, "box", own(sandbox.Profile{Default: sandbox.Allow}))
	wants(t, "another tenant's sandbox", err, sandbox.CodeNotFound)
	_, err = r.Sandboxes.Updater.SetNetwork(r.owner, "box", own(sandbox.Profile{Rules: []sandbox.Rule{{Action: "perhaps", Hosts: []string{"a.test"}}}}))
	wants(t, "nonsense", err, sandbox.CodeInvalid)
	_, err = r.Sandboxes.Updater.SetNetwork(r.owner, "box", sandbox.Network{})
	wants(t, "no network at all", err, sandbox.CodeConflict)

	if _, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "offline"}}}); err != nil {
		t.Fatal(err)
	}
	_, err = r.Sandboxes.Updater.SetNetwork(r.owner, "offline", own(sandbox.Profile{}))
	wants(t, "a sandbox without a network", err, sandbox.CodeConflict)
	other, err := r.Sandboxes.Records.Get(r.owner, "other")
	if err != nil || other.Spec.Network.Egress[0] != "a.example.com" {
		t.Errorf("the other sandbox became %+v, %v", other.Spec.Network, err)
	}
}
