package services_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

const caps = `policies:
  - name: agents
    tenants: [acme]
    cpus: 2
    memory: 1g
    disk: 2g
    pids: 100
    lifetime: 1h
    images: [host]
    mounts: [/srv/data]
    secrets: [github, open, tight]
    secretModes: [gateway]
    egress:
      rules: [{action: allow, hosts: ["*.example.com"]}]
  - name: locked
    labels: {locked: "*yes"}
    network: false
`

// ruled is a rig with policies.
func ruled(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, nil)
	r.load(t, caps)
	return r
}

func (r *rig) load(t *testing.T, text string) {
	t.Helper()
	r.rules = text
	if err := r.Policies.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// by wants a refusal by a rule of the policies, which is on record.
func (r *rig) by(t *testing.T, what, rule string, err error) {
	t.Helper()
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || e.Code != sandbox.CodeDenied || e.Rule != rule || !strings.Contains(e.Message, "(caps.yaml:") {
		t.Errorf("%s: got %+v, want a refusal by %s", what, err, rule)
	}
}

func (r *rig) sandbox(t *testing.T, spec sandbox.Spec) store.Sandbox {
	t.Helper()
	made, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: spec}})
	if err != nil {
		t.Fatal(err)
	}
	return made.Sandbox
}

// Defaults of a request stay within the policies. Requests beyond them are
// refused with the name of the policy, and nothing is left behind.
func TestPoliciesAtCreation(t *testing.T) {
	r := ruled(t)
	b := r.sandbox(t, sandbox.Spec{Name: "plain"})
	if b.Resources != (sandbox.Resources{CPUs: 2, Memory: 1 << 30, Disk: 2 << 30, PIDs: 100}) || b.Expires.Sub(b.Created).Round(time.Minute) != time.Hour {
		t.Errorf("it got %+v until %v", b.Resources, b.Expires)
	}
	web := sandbox.Network{Egress: []string{"api.example.com"}}
	add := injecting("", "other", "api.example.com")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	r.load(t, strings.ReplaceAll(caps, "/srv/data", filepath.Dir(link)))
	for rule, specs := range map[string][]sandbox.Spec{
		"agents.cpus":        {{Resources: sandbox.Resources{CPUs: 3}}, {Resources: sandbox.Resources{CPUs: -1}}},
		"agents.memory":      {{Resources: sandbox.Resources{Memory: 2 << 30}}, {Resources: sandbox.Resources{Memory: -1}}},
		"agents.disk":        {{Resources: sandbox.Resources{Disk: -1}}},
		"agents.pids":        {{Resources: sandbox.Resources{PIDs: 101}}},
		"agents.lifetime":    {{Lifetime: sandbox.Lifetime{Timeout: time.Hour + time.Millisecond}}},
		"agents.images":      {{Image: "debian:12"}, {Image: "template:none"}},
		"agents.mounts":      {{Mounts: []sandbox.Mount{{Source: "/etc", Target: "/x"}}}, {Mounts: []sandbox.Mount{{Source: link, Target: "/x"}}}, {Mounts: []sandbox.Mount{{Source: link + "/none/x", Target: "/x"}}}, {Mounts: []sandbox.Mount{{Source: link + "/../x", Target: "/x"}}}},
		"agents.secrets":     {{Network: web, Secrets: []sandbox.SecretRef{{Name: "other"}}}, {Network: sandbox.Network{Inline: &add}}},
		"agents.secretModes": {{Secrets: []sandbox.SecretRef{{Name: "open", Mode: sandbox.SecretEnv}}}},
		"locked.network":     {{Network: web, Labels: map[string]string{"locked": "yes"}}},
	} {
		for _, spec := range specs {
			spec.Name = "box"
			if spec.Image == "template:none" {
				continue // there is none, as expected
			}
			_, err := r.Sandboxes.Creator.Create(r.owner, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: spec}})
			r.by(t, rule, rule, err)
			if a, err := r.Policies.Explain(r.owner, spec); err != nil || a.Allow || !strings.Contains(a.Message, "caps.yaml") {
				t.Errorf("%s is not explained: %+v %v", rule, a, err)
			}
		}
	}
	_, err := r.Sandboxes.Public().CreateFor(r.writer, sandbox.Spec{}, 2*time.Hour)
	r.by(t, "a time that the daemon watches", "agents.lifetime", err)
	all, _, err := r.Sandboxes.Reader.List(r.owner, store.Filter{}, store.Page{})
	if err != nil || len(all) != 1 {
		t.Errorf("%d sandboxes, %v", len(all), err)
	}
	events, err := r.Events.Events(r.owner, sandbox.EventQuery{Types: []string{eventlog.Denied}})
	if err != nil || !slices.ContainsFunc(events, func(e sandbox.Event) bool { return e.Policy == "agents.memory" && e.Op == "sandbox.create" }) {
		t.Errorf("the refusals are not on record: %+v %v", events, err)
	}
	if _, err := r.Sandboxes.Creator.Create(r.rival, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Resources: sandbox.Resources{CPUs: 9}}}}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

// "No limit" is more than any policy allows, for each resource, and for new and
// existing sandboxes.
func TestAttackNoLimitUnderPolicies(t *testing.T) {
	r := ruled(t)
	r.sandbox(t, sandbox.Spec{Name: "box"})
	for rule, none := range map[string]sandbox.Resources{
		"agents.cpus": {CPUs: -1}, "agents.memory": {Memory: -1}, "agents.disk": {Disk: -1}, "agents.pids": {PIDs: -1},
	} {
		_, err := r.Sandboxes.Creator.Create(r.owner, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Resources: none}}})
		r.by(t, "create", rule, err)
		_, err = r.Sandboxes.Updater.Update(r.writer, "box", sandbox.Change{Resources: none})
		r.by(t, "update", rule, err)
	}
}

// Every other way to have more than the policies allow passes the same place.
func TestPoliciesCannotBePassedBy(t *testing.T) {
	r := ruled(t)
	r.secret(t, "github", nil)
	r.secret(t, "other", nil)
	b := r.sandbox(t, sandbox.Spec{Name: "box", Network: sandbox.Network{Egress: []string{"api.example.com", "evil.test"}}, Secrets: []sandbox.SecretRef{{Name: "github"}}})
	long, forever, yes := 2*time.Hour, time.Duration(0), "oh yes"
	for rule, c := range map[string]sandbox.Change{
		"agents.cpus":     {Resources: sandbox.Resources{CPUs: 3}},
		"agents.memory":   {Resources: sandbox.Resources{Memory: -1}},
		"agents.lifetime": {Lifetime: sandbox.LifetimeChange{Timeout: &long}},
		"locked.network":  {Labels: map[string]*string{"locked": &yes}},
	} {
		_, err := r.Sandboxes.Updater.Update(r.writer, "box", c)
		r.by(t, "update", rule, err)
	}
	_, err := r.Sandboxes.Updater.Update(r.writer, "box", sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &forever}})
	r.by(t, "for ever", "agents.lifetime", err)
	for _, extend := range []bool{true, false} {
		_, err = r.Sandboxes.Expirer.Expire(r.writer, "box", b.Created.Add(2*time.Hour), extend)
		r.by(t, "expire", "agents.lifetime", err)
	}
	if _, err := r.Sandboxes.Expirer.Expire(r.writer, "box", b.Created.Add(30*time.Minute), false); err != nil {
		t.Errorf("a shorter life: %v", err)
	}
	add := injecting("", "other", "api.example.com")
	_, err = r.Sandboxes.Updater.SetNetwork(r.writer, "box", sandbox.Network{Inline: &add})
	r.by(t, "other rules", "agents.secrets", err)
	if _, err = r.Sandboxes.Updater.SetNetwork(r.writer, "box", sandbox.Network{Egress: []string{"*"}}); err != nil {
		t.Error(err)
	}
	if e := r.gateway.last(t, b.ID); len(e.EgressLimits) != 1 || len(e.Profile.Rules) != 1 {
		t.Errorf("with other rules the gateway has %+v", e)
	}
	_, err = r.Sandboxes.Creator.Fork(r.writer, "box", durable.ForkRequest{Count: 1, Labels: map[string]string{"locked": yes}})
	r.by(t, "fork", "locked.network", err)
	if _, err := r.Snapshots.CreateSnapshot(r.writer, "box", durable.SnapshotRequest{Name: "snap"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Sandboxes.Pauser.Stop(r.writer, "box", 0); err != nil {
		t.Fatal(err)
	}
	_, err = r.Profiles.Create(r.owner, injecting("ci", "other", "api.example.com"))
	r.by(t, "a profile that adds a secret", "agents.secrets", err)
	_, err = r.Profiles.Apply(r.owner, 0, injecting("ci", "other", "api.example.com"))
	r.by(t, "a profile that is applied", "agents.secrets", err)
	_, err = r.Secrets.Create(r.owner, durable.NewSecret{Name: "tight", Value: []byte("a value"), AllowEnv: true})
	r.by(t, "a secret for the inside", "agents.secretModes", err)

	// Sandboxes made earlier are not restored under policies that forbid them.
	r.load(t, strings.Replace(caps, "images: [host]", `images: ["debian:*"]`, 1))
	_, err = r.Sandboxes.Pauser.Start(r.writer, "box")
	r.by(t, "start", "agents.images", err)
	_, err = r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Snapshot: "snap"}}})
	r.by(t, "a snapshot", "agents.images", err)
	_, err = r.Sandboxes.Creator.Fork(r.writer, "box", durable.ForkRequest{Count: 1})
	r.by(t, "a fork of what is stopped", "agents.images", err)
	r.load(t, caps)
	if _, err := r.Sandboxes.Pauser.Start(r.writer, "box"); err != nil {
		t.Errorf("start: %v", err)
	}
	if _, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Snapshot: "snap"}}}); err != nil {
		t.Errorf("a snapshot: %v", err)
	}
}

// The gateway gets the policies' limits with the profile, and their changes
// immediately. It loses secrets that a sandbox may not use any more.
func TestEgressLimitsReachTheGateway(t *testing.T) {
	r := ruled(t)
	r.secret(t, "github", nil)
	b := r.sandbox(t, sandbox.Spec{Name: "box", Network: sandbox.Network{Egress: []string{"evil.test"}}, Secrets: []sandbox.SecretRef{{Name: "github"}}})
	e, err := r.Profiles.Egress(t.Context(), b.ID)
	if err != nil || len(e.EgressLimits) != 1 || e.EgressLimits[0].Name != "agents" || len(e.Secrets) != 1 {
		t.Fatalf("%+v %v", e, err)
	}
	r.load(t, strings.Replace(caps, "secrets: [github, open, tight]", "secrets: []", 1)+"  - {name: none, network: false}\n")
	if e := r.gateway.last(t, b.ID); len(e.EgressLimits) != 2 || len(e.Secrets) != 0 {
		t.Errorf("after other policies: %+v", e)
	}
	r.load(t, caps)
	if e := r.gateway.last(t, b.ID); len(e.EgressLimits) != 1 || len(e.Secrets) != 1 {
		t.Errorf("after the first again: %+v", e)
	}
	r.load(t, caps+"  - {name: team, labels: {team: a}, egress: {default: deny}}\n")
	team := "a"
	if _, err := r.Sandboxes.Updater.Update(r.writer, "box", sandbox.Change{Labels: map[string]*string{"team": &team}}); err != nil {
		t.Fatal(err)
	}
	if e := r.gateway.last(t, b.ID); len(e.EgressLimits) != 2 {
		t.Errorf("after another label: %+v", e)
	}
	if x, err := r.Profiles.Test(r.owner, mustProfile(t, r), "GET", "https://evil.test/"); err != nil || x.Allow || !strings.Contains(x.Message, "policy agents") {
		t.Errorf("a test says %+v %v", x, err)
	}
}

// New policies are recorded when the networks have them, with a code if some do
// not.
func TestPoliciesAreRecordedWhenTheyApply(t *testing.T) {
	r := ruled(t)
	b := r.sandbox(t, sandbox.Spec{Name: "box", Network: sandbox.Network{Egress: []string{"evil.test"}}})
	operator := guard.WithPrincipal(t.Context(), key.Peer(key.DefaultTenant, 0))
	before := count(t, r, operator, eventlog.PoliciesLoaded)
	asked := 0
	r.gateway.check = func() {
		asked++
		if n := count(t, r, operator, eventlog.PoliciesLoaded); n != before+asked-1 {
			t.Errorf("there are %d events before change %d applies, want %d", n, asked, before+asked-1)
		}
	}
	stricter := caps + "  - {name: none, network: false}\n"
	r.load(t, stricter)
	if e := r.gateway.last(t, b.ID); len(e.EgressLimits) != 2 {
		t.Errorf("the gateway has %+v", e.EgressLimits)
	}
	r.gateway.fail, r.rules = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the gateway failed"}, caps
	if err := r.Policies.Load(t.Context()); !policies.InForce(err) || sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("with a gateway that fails: %v", err)
	}
	if got := len(r.Policies.Set().Policies()); got != 2 {
		t.Errorf("%d policies are in force", got)
	}
	all, err := r.Events.Events(operator, sandbox.EventQuery{Types: []string{eventlog.PoliciesLoaded}})
	if err != nil || asked != 2 || len(all) != before+2 {
		t.Fatalf("%d changes, %d events, %v", asked, len(all), err)
	}
	slices.SortFunc(all, func(a, b sandbox.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	for i, want := range []sandbox.Code{"", sandbox.CodeUnavailable} {
		if got := all[before+i].Code; got != want {
			t.Errorf("the event of change %d has the code %q, want %q", i+1, got, want)
		}
	}
}

func mustProfile(t *testing.T, r *rig) string {
	t.Helper()
	p, err := r.Profiles.Create(r.owner, sandbox.Profile{Name: "wide", Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"*"}}}})
	if err != nil {
		t.Fatal(err)
	}
	return p.Name
}

// An invalid file changes nothing and is reported once. Callers other than the
// owner of the machine do not see the error.
func TestBrokenPolicies(t *testing.T) {
	r := ruled(t)
	for _, broken := range []string{"", "policies: []", "policies: [{name: a, cpu: 1}]"} {
		r.rules = broken
		for range 2 {
			if err := r.Policies.Load(t.Context()); sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("%q: %v", broken, err)
			}
		}
		_, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Resources: sandbox.Resources{CPUs: 3}}}})
		r.by(t, "the old ones", "agents.cpus", err)
	}
	s, err := r.Policies.Get(r.owner)
	if err != nil || s.Problem == "" || len(s.Policies) != 2 || s.Source != "caps.yaml" || s.Loaded.IsZero() {
		t.Errorf("%+v %v", s, err)
	}
	s, err = r.Policies.Get(r.rival)
	if err != nil || s.Problem != "" || s.Source != "" || len(s.Policies) != 1 || s.Policies[0].Name != "locked" {
		t.Errorf("the rival sees %+v %v", s, err)
	}
	if _, err := r.Policies.Reload(r.rival); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("the rival reloads: %v", err)
	}
	if _, err := r.Policies.Get(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnauthorized {
		t.Errorf("nobody: %v", err)
	}
	r.rules = caps
	if s, err := r.Policies.Reload(r.operator); err != nil || s.Problem != "" {
		t.Errorf("%+v %v", s, err)
	}
	operator := guard.WithPrincipal(t.Context(), key.Peer(key.DefaultTenant, 0))
	kept, loaded := count(t, r, operator, eventlog.PoliciesKept), count(t, r, operator, eventlog.PoliciesLoaded)
	if kept != 3 || loaded != 2 {
		t.Errorf("%d times kept and %d times loaded on record", kept, loaded)
	}
}

func count(t *testing.T, r *rig, ctx context.Context, typ string) int {
	t.Helper()
	events, err := r.Events.Events(ctx, sandbox.EventQuery{Types: []string{typ}})
	if err != nil {
		t.Fatal(err)
	}
	return len(events)
}
