package plan_test

import (
	"cmp"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/enforce"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const caps = `policies:
  - name: agents
    labels: {kind: [agent]}
    cpus: 2
    memory: 1g
    lifetime: 1h
    isolation: kernel
    images: ["debian:*", host, "template:base*"]
    mounts: [/srv/data]
    network: false
`

// rules are the policies of a text.
func rules(t *testing.T, text string) plan.Policies {
	t.Helper()
	set, err := policyset.Parse(map[string][]byte{"caps.yaml": []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	return plan.Policies{Set: set, Defaults: sandbox.Resources{Memory: 4 << 30, PIDs: 100}}
}

// agent is a Spec to which the policies apply.
func agent(change func(*sandbox.Spec)) sandbox.CreateRequest {
	s := sandbox.Spec{Labels: map[string]string{"kind": "agent"}}
	if change != nil {
		change(&s)
	}
	return sandbox.CreateRequest{Spec: s}
}

// few sets limits that the policies allow.
func few(s *sandbox.Spec) { s.Resources = sandbox.Resources{CPUs: 1, Memory: 1 << 29} }

// wantRefusal checks the code of an error and words of its text.
func wantRefusal(t *testing.T, err error, code sandbox.Code, words string) {
	t.Helper()
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || e.Code != code || !strings.Contains(e.Message, words) {
		t.Errorf("refused with %v, want %s with %q", err, code, words)
	}
}

func TestDraftFills(t *testing.T) {
	saved := &plan.Snapshot{
		ID: "snap-1", Name: "kept", Provider: "gvisor", Env: map[string]string{"A": "1", "B": "2"},
		Spec: sandbox.Spec{
			Image: "sha256:aa", User: "app", Workdir: "/app", Isolation: sandbox.IsolationKernel,
			Env: map[string]string{"A": "", "B": ""}, Resources: sandbox.Resources{CPUs: 1, Memory: 1 << 29, PIDs: 7},
		},
	}
	base := &plan.Template{Template: durable.Template{Name: "base", Image: "sha256:bb", CPUs: 1.5, Memory: 1 << 28}}
	remembered := &plan.Template{Template: base.Template, Saved: saved, Gives: sandbox.IsolationKernel}
	hard := sandbox.Spec{Image: "template:base", Isolation: sandbox.IsolationHardware}
	for _, tt := range []struct {
		name   string
		ask    plan.Ask
		origin string
		want   sandbox.Spec // the fields that are compared
	}{
		{"nothing is known", plan.Ask{}, "", sandbox.Spec{}},
		{"the policies", plan.Ask{Request: plan.Request{CreateRequest: agent(nil)}, Policies: rules(t, caps), Images: []string{"host"}}, "", sandbox.Spec{
			Resources: sandbox.Resources{CPUs: 2, Memory: 1 << 30}, Isolation: sandbox.IsolationKernel, Lifetime: sandbox.Lifetime{Timeout: time.Hour},
		}},
		{"the policies, where the daemon ends it", plan.Ask{Request: plan.Request{CreateRequest: agent(nil), Timeout: time.Minute}, Policies: rules(t, caps), Images: []string{"host"}}, "", sandbox.Spec{
			Resources: sandbox.Resources{CPUs: 2, Memory: 1 << 30}, Isolation: sandbox.IsolationKernel,
		}},
		{"a sandbox that the policies do not mean", plan.Ask{Policies: rules(t, caps), Images: []string{"host"}}, "", sandbox.Spec{}},
		{"a template", plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Image: "template:base", Resources: sandbox.Resources{CPUs: 3}}}}, Template: base}, "", sandbox.Spec{
			Image: "sha256:bb", Resources: sandbox.Resources{CPUs: 3, Memory: 1 << 28},
		}},
		{"a template with memory", plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Image: "template:base"}}}, Template: remembered}, "snap-1", sandbox.Spec{
			Image: "sha256:aa", Provider: "gvisor", User: "app", Workdir: "/app", Isolation: sandbox.IsolationKernel, Resources: sandbox.Resources{CPUs: 1.5, Memory: 1 << 28, PIDs: 7},
		}},
		{"a template with memory of another provider", plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Image: "template:base", Provider: "node-a"}}}, Template: remembered}, "", sandbox.Spec{
			Image: "sha256:bb", Provider: "node-a", Resources: sandbox.Resources{CPUs: 1.5, Memory: 1 << 28},
		}},
		{"a template whose memory is too weak", plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: hard}}, Template: remembered}, "", sandbox.Spec{
			Image: "sha256:bb", Isolation: sandbox.IsolationHardware, Resources: sandbox.Resources{CPUs: 1.5, Memory: 1 << 28},
		}},
		{"a snapshot", plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Snapshot: "kept", User: "root", Isolation: sandbox.IsolationNone}}}, Snapshot: saved}, "snap-1", sandbox.Spec{
			Image: "sha256:aa", Provider: "gvisor", User: "root", Workdir: "/app", Isolation: sandbox.IsolationKernel, Resources: sandbox.Resources{CPUs: 1, Memory: 1 << 29, PIDs: 7},
		}},
		{"a sandbox that exists", plan.Ask{Request: plan.Request{CreateRequest: agent(few)}, Policies: rules(t, caps), Images: []string{"host"}, Again: true, Has: sandbox.IsolationKernel}, "", sandbox.Spec{
			Resources: sandbox.Resources{CPUs: 1, Memory: 1 << 29},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := plan.Draft(tt.ask)
			got := p.Spec
			if err != nil || p.Origin != tt.origin {
				t.Fatalf("made from %q, %v; want %q", p.Origin, err, tt.origin)
			}
			if got.Image != tt.want.Image || got.Provider != tt.want.Provider || got.User != tt.want.User || got.Workdir != tt.want.Workdir || got.Snapshot != "" ||
				got.Isolation != tt.want.Isolation || got.Resources != tt.want.Resources || got.Lifetime != tt.want.Lifetime {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
			if tt.origin != "" && !maps.Equal(got.Env, saved.Env) {
				t.Errorf("the environment is %v, want that of the snapshot", got.Env)
			}
		})
	}
}

func TestDraftRefuses(t *testing.T) {
	saved := &plan.Snapshot{ID: "snap-1", Name: "kept", Provider: "gvisor", Spec: sandbox.Spec{Image: "sha256:aa", Env: map[string]string{"A": "", "B": ""}}, Env: map[string]string{"A": "1"}}
	from := func(s sandbox.Spec) sandbox.CreateRequest {
		s.Snapshot = "kept"
		return sandbox.CreateRequest{Spec: s}
	}
	host, limits := []string{"host"}, rules(t, caps)
	linked := limits
	linked.Mounts = []sandbox.Mount{{Source: "/etc", Target: "/x"}}
	for _, tt := range []struct {
		name  string
		ask   plan.Ask
		code  sandbox.Code
		words string
	}{
		{"an invalid Spec", plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "../etc"}}}}, sandbox.CodeInvalid, ""},
		{"a label of Atoll", plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Labels: map[string]string{"atoll.owner": "me"}}}}}, sandbox.CodeInvalid, "keeps for itself"},
		{"when to pull", plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Pull: "sometimes"}}}, sandbox.CodeInvalid, "missing, always and never"},
		{"a snapshot of another provider", plan.Ask{Request: plan.Request{CreateRequest: from(sandbox.Spec{Provider: "e2b"})}, Snapshot: saved}, sandbox.CodeInvalid, "created by provider gvisor, not by e2b"},
		{"values that are not here", plan.Ask{Request: plan.Request{CreateRequest: from(sandbox.Spec{})}, Snapshot: saved}, sandbox.CodeUnavailable, "environment variables B"},
		{"CPUs", plan.Ask{Request: plan.Request{CreateRequest: agent(func(s *sandbox.Spec) { s.Resources.CPUs = 3 })}, Policies: limits, Images: host}, sandbox.CodeDenied, "at most 2"},
		{"no limit of CPUs", plan.Ask{Request: plan.Request{CreateRequest: agent(func(s *sandbox.Spec) { s.Resources.CPUs = -1 })}, Policies: limits, Images: host}, sandbox.CodeDenied, "agents"},
		{"a lifetime", plan.Ask{Request: plan.Request{CreateRequest: agent(func(s *sandbox.Spec) { s.Lifetime.Timeout = 2 * time.Hour })}, Policies: limits, Images: host}, sandbox.CodeDenied, "1h"},
		{"a time that the daemon watches", plan.Ask{Request: plan.Request{CreateRequest: agent(nil), Timeout: 2 * time.Hour}, Policies: limits, Images: host}, sandbox.CodeDenied, "1h"},
		{"less isolation", plan.Ask{Request: plan.Request{CreateRequest: agent(func(s *sandbox.Spec) { s.Isolation = sandbox.IsolationNone })}, Policies: limits, Images: host}, sandbox.CodeDenied, "at least kernel"},
		{"an image", plan.Ask{Request: plan.Request{CreateRequest: agent(func(s *sandbox.Spec) { s.Image = "alpine:3" })}, Policies: limits, Images: []string{"alpine:3"}}, sandbox.CodeDenied, "alpine:3"},
		{"the target of a link", plan.Ask{Request: plan.Request{CreateRequest: agent(func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/srv/data/l", Target: "/x"}} })}, Policies: linked, Images: host}, sandbox.CodeDenied, "/etc"},
		{"a network", plan.Ask{Request: plan.Request{CreateRequest: agent(func(s *sandbox.Spec) { s.Network.Egress = []string{"a.example"} })}, Policies: limits, Images: host}, sandbox.CodeDenied, "network"},
		{"less than it had", plan.Ask{Request: plan.Request{CreateRequest: agent(few)}, Policies: limits, Images: host, Again: true, Has: sandbox.IsolationNone}, sandbox.CodeDenied, "at least kernel"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := plan.Draft(tt.ask)
			wantRefusal(t, err, tt.code, tt.words)
			if known, ok := errors.AsType[*sandbox.Error](err); (ok && known.Rule != "") != (tt.code == sandbox.CodeDenied) {
				t.Errorf("%T: only the refusals of policies are recorded", err)
			}
		})
	}
	old := agent(func(s *sandbox.Spec) { few(s); s.Lifetime.Timeout = 2 * time.Hour })
	if _, err := plan.Draft(plan.Ask{Request: plan.Request{CreateRequest: old}, Policies: limits, Images: host, Again: true, Has: sandbox.IsolationKernel}); err != nil {
		t.Errorf("the error for a sandbox that exists is %v, want none: its lifetime is not judged again", err)
	}
}

// An image that only its signatures can make allowed has to be fetched first, but
// not for a sandbox that the other rules refuse.
func TestDraftOfSignedImages(t *testing.T) {
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	set, err := policyset.Load(fstest.MapFS{
		"caps.yaml":   {Data: []byte("policies:\n  - name: signed\n    cpus: 2\n    images:\n      - {image: \"debian:*\", signedBy: [release.pub]}\n")},
		"release.pub": {Data: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})},
	}, ".")
	if err != nil {
		t.Fatal(err)
	}
	k := plan.Policies{Set: set, Fetches: true}
	ask := plan.Ask{Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Image: "debian:12"}}}, Policies: k, Images: []string{"debian:12"}}
	if p, err := plan.Draft(ask); err != nil || !p.Unfetched {
		t.Errorf("before it is fetched, Unfetched is %v, %v; want true", p.Unfetched, err)
	}
	ask.Spec.Resources.CPUs = 3
	_, err = plan.Draft(ask)
	wantRefusal(t, err, sandbox.CodeDenied, "at most 2")
	ask.Spec.Resources.CPUs, ask.Base = 0, []string{"debian:12"} // a build step has the image already
	_, err = plan.Draft(ask)
	wantRefusal(t, err, sandbox.CodeDenied, "debian:12")
	ask.Base, ask.Policies.Fetches = nil, false
	_, err = plan.Draft(ask)
	wantRefusal(t, err, sandbox.CodeDenied, "debian:12")
}

// The image that was fetched is judged by its signatures, and by nothing else again.
// The sandbox is made from exactly that image.
func TestSigned(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	set, err := policyset.Load(fstest.MapFS{
		"caps.yaml":   {Data: []byte("policies:\n  - name: signed\n    lifetime: 1h\n    images:\n      - {image: \"debian:*\", signedBy: [release.pub]}\n")},
		"release.pub": {Data: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})},
	}, ".")
	if err != nil {
		t.Fatal(err)
	}
	const digest = "sha256:aa"
	signed := func(key ed25519.PrivateKey, digest string) policy.Signature {
		payload := []byte(`{"critical":{"type":"cosign container image signature","image":{"docker-manifest-digest":"` + digest + `"},"identity":{"docker-reference":"debian"}}}`)
		return policy.Signature{Subject: digest, Payload: payload, Signature: ed25519.Sign(key, payload)}
	}
	_, foreign, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ref  string
		sigs []policy.Signature
		code sandbox.Code
	}{
		{"by the key", digest, []policy.Signature{signed(private, digest)}, ""},
		{"by the key, among others", digest, []policy.Signature{signed(foreign, digest), signed(private, digest)}, ""},
		{"by another key", digest, []policy.Signature{signed(foreign, digest)}, sandbox.CodeDenied},
		{"not at all", digest, nil, sandbox.CodeDenied},
		{"by the key, without a digest", "", []policy.Signature{signed(private, digest)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ask := plan.Ask{Policies: plan.Policies{Set: set, Fetches: true}, Images: []string{"debian:12"}}
			ask.Spec.Image = "debian:12"
			p, err := plan.Draft(ask)
			if err != nil || !p.Unfetched {
				t.Fatalf("before it is fetched: unfetched %v, %v; want a plan that needs it", p.Unfetched, err)
			}
			p.Spec.Lifetime.Timeout = 2 * time.Hour // which was judged before
			got, err := p.Signed(tt.ref, tt.sigs)
			if sandbox.CodeOf(err) != tt.code {
				t.Fatalf("the error is %v, want the code %q", err, tt.code)
			}
			want, images := cmp.Or(tt.ref, "debian:12"), []string{"debian:12"}
			if tt.ref != "" {
				images = append(images, tt.ref)
			}
			if got.Unfetched || got.Spec.Image != want || !slices.Equal(got.Images, images) {
				t.Errorf("the sandbox is made from %s, one of %v (unfetched: %v); want %s, one of %v", got.Spec.Image, got.Images, got.Unfetched, want, images)
			}
			if len(p.Images) != 1 {
				t.Errorf("the plan from before has the images %v now", p.Images)
			}
		})
	}
}

// A new sandbox starts its main command anew. One that exists goes on with it.
func TestDraftMain(t *testing.T) {
	for again, want := range map[bool]sandbox.MainCommand{false: {Args: []string{"serve"}}, true: {Args: []string{"serve"}, Process: "p1", Restarts: 3}} {
		ask := plan.Ask{Again: again}
		ask.Spec.Main = &sandbox.MainCommand{Args: []string{"serve"}, Process: "p1", Restarts: 3}
		p, err := plan.Draft(ask)
		if err != nil || p.Spec.Main.Process != want.Process || p.Spec.Main.Restarts != want.Restarts {
			t.Errorf("again %v: the main command is %+v, %v; want %+v", again, p.Spec.Main, err, want)
		}
		if ask.Spec.Main.Restarts != 3 {
			t.Error("the request of the caller was changed")
		}
	}
}

// offers are the terms of a provider with these facts.
func offers(f driver.Facts) plan.Terms {
	f.Provider = "fake"
	return plan.Terms{
		Facts: func() (driver.Facts, error) { return f, nil }, Holds: func(ref sandbox.SecretRef) bool { return ref.Name == "theirs" },
		Workspaces: true, NewID: func() sandbox.ID { return "sb-1" },
	}
}

func TestFitFills(t *testing.T) {
	p, err := plan.Plan{Tenant: "acme", Spec: sandbox.Spec{Workdir: "/a//b/"}}.Fit(offers(driver.Facts{}))
	if s := p.Spec; err != nil || s.ID != "sb-1" || s.Name != "sb-1" || s.Image != "host" || s.Hostname != "sb-1" || s.Workdir != "/a/b" {
		t.Errorf("an empty Spec becomes %+v, %v; want the id as its names, the image host, and a clean workdir", s, err)
	}
	p, err = plan.Plan{Spec: sandbox.Spec{ID: "sb-9", Name: "one", Image: "debian:12", Hostname: "h"}}.Fit(offers(driver.Facts{}))
	if s := p.Spec; err != nil || s.ID != "sb-9" || s.Name != "one" || s.Image != "debian:12" || s.Hostname != "h" || !p.AsksName {
		t.Errorf("a Spec that has all becomes %+v, %v; want it unchanged", p, err)
	}
	p, err = plan.Plan{Tenant: "acme", Spec: sandbox.Spec{Name: "one", Workspaces: []sandbox.WorkspaceMount{{Name: "w"}}}}.Fit(offers(driver.Facts{}))
	if err != nil || p.AsksName || p.Spec.Workdir != sandbox.WorkspaceDir {
		t.Errorf("with a workspace it becomes %+v, %v; want commands to begin in %s", p, err, sandbox.WorkspaceDir)
	}
	terms := offers(driver.Facts{Limits: map[string]driver.Limit{"memory": {Holds: true}, "cpus": {Why: "no cgroups"}}})
	terms.Defaults = sandbox.Resources{CPUs: 2, Memory: 1 << 30}
	p, err = plan.Plan{Tenant: "acme"}.Fit(terms)
	if err != nil || p.Spec.Resources != (sandbox.Resources{Memory: 1 << 30}) || len(p.Limits) != 0 {
		t.Errorf("with defaults it becomes %+v, %v; want the memory alone, because CPUs would not be enforced", p, err)
	}
	p, err = plan.Plan{Tenant: "acme", Spec: sandbox.Spec{Resources: sandbox.Resources{CPUs: 1}}}.Fit(terms)
	if want := (map[string]sandbox.Enforcement{"cpus": {Why: "no cgroups"}}); err != nil || !maps.Equal(p.Limits, want) {
		t.Errorf("a limit that is not enforced: %v, %v; want %v", p.Limits, err, want)
	}
}

func TestFitRefuses(t *testing.T) {
	web := sandbox.Network{Egress: []string{"api.example.com"}}
	gateway := []sandbox.SecretRef{{Name: "token"}}
	fixed := driver.Facts{Limits: map[string]driver.Limit{"memory": {Fixed: true}}}
	without := offers(driver.Facts{})
	without.Workspaces = false
	gone := &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such profile"}
	for _, tt := range []struct {
		name   string
		tenant string
		plan   plan.Plan
		terms  plan.Terms
		code   sandbox.Code
		words  string
	}{
		{"less isolation", "acme", plan.Plan{Spec: sandbox.Spec{Isolation: sandbox.IsolationKernel}}, offers(driver.Facts{}), sandbox.CodeUnsupported, "and kernel is demanded"},
		{"workspaces without a daemon", "", plan.Plan{Spec: sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "w"}}}}, without, sandbox.CodeUnsupported, "workspaces need the daemon"},
		{"pausing at the timeout without a daemon", "", plan.Plan{Spec: sandbox.Spec{Lifetime: sandbox.Lifetime{Timeout: time.Hour, TimeoutAction: sandbox.IdleStop}}}, offers(driver.Facts{}), sandbox.CodeUnsupported, "needs the daemon"},
		{"a profile without a daemon", "", plan.Plan{Spec: sandbox.Spec{Network: sandbox.Network{Profile: "ci"}}}, offers(driver.Facts{}), sandbox.CodeUnavailable, "need a daemon"},
		{"a network", "acme", plan.Plan{Spec: sandbox.Spec{Network: web}}, offers(driver.Facts{}), sandbox.CodeUnsupported, "cannot give sandboxes a network"},
		{"a secret for the gateway", "acme", plan.Plan{Spec: sandbox.Spec{Secrets: gateway}}, offers(driver.Facts{}), sandbox.CodeUnsupported, "Atoll's egress gateway"},
		{"a profile that is missing", "acme", plan.Plan{Spec: sandbox.Spec{Network: sandbox.Network{Profile: "ci"}}, Egress: plan.Egress{Missing: gone}}, offers(driver.Facts{}), sandbox.CodeNotFound, "no such profile"},
		{"a fixed limit", "acme", plan.Plan{Spec: sandbox.Spec{Resources: sandbox.Resources{Memory: 1 << 28}}}, offers(fixed), sandbox.CodeUnsupported, "its size is fixed"},
		{"a limit that must hold", "acme", plan.Plan{Spec: sandbox.Spec{RequireLimits: true, Resources: sandbox.Resources{CPUs: 1}}}, offers(driver.Facts{}), sandbox.CodeUnsupported, "not enforced here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.plan.Tenant = tt.tenant
			_, err := tt.plan.Fit(tt.terms)
			wantRefusal(t, err, tt.code, tt.words)
		})
	}
	p, err := plan.Plan{Tenant: "acme", Spec: sandbox.Spec{Secrets: []sandbox.SecretRef{{Name: "theirs"}}}}.Fit(offers(driver.Facts{}))
	if err != nil {
		t.Errorf("the error for a secret that the provider holds is %v, want none", err)
	}
	denyAll := sandbox.Spec{Network: sandbox.Network{Egress: []string{}}}
	if p, err = (plan.Plan{Tenant: "acme", Spec: denyAll}).Fit(offers(driver.Facts{Isolates: true})); err != nil || p.Spec.Network.Asked() {
		t.Errorf("a network that denies all, of a provider that has none, becomes %+v, %v; want none", p.Spec.Network, err)
	}
}

// Rules are translated for a provider without a gateway, under the limits of the
// policies.
func TestFitTranslatesRules(t *testing.T) {
	terms := offers(driver.Facts{})
	terms.Ability = &enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{80, 443}}
	hosts := sandbox.Network{Egress: []string{"api.example.com"}}
	p, err := plan.Plan{Tenant: "acme", Spec: sandbox.Spec{Network: hosts}}.Fit(terms)
	if rules := p.Spec.Network.Plain; err != nil || rules == nil || rules.Open || len(rules.Allow) != 1 || rules.Allow[0].Host != "api.example.com" {
		t.Errorf("the rules are %+v, %v; want api.example.com alone", rules, err)
	}
	none := plan.Egress{EgressLimits: []policy.EgressLimit{{Name: "agents", Profile: sandbox.Profile{}}}}
	p, err = plan.Plan{Tenant: "acme", Spec: sandbox.Spec{Network: hosts}, Egress: none}.Fit(terms)
	if rules := p.Spec.Network.Plain; err != nil || rules == nil || len(rules.Allow) != 0 {
		t.Errorf("under a limit that allows nothing the rules are %+v, %v; want none", rules, err)
	}
	p, err = plan.Plan{Tenant: "acme", Spec: sandbox.Spec{Network: hosts}}.Fit(offers(driver.Facts{Capabilities: driver.Capabilities{Network: true}}))
	if err != nil || p.Spec.Network.Plain != nil || !slices.Equal(p.Spec.Network.Egress, hosts.Egress) {
		t.Errorf("with a gateway the network is %+v, %v; want the hosts as they were, and no plain rules", p.Spec.Network, err)
	}
}

// Rules that a provider cannot enforce go to the gateway of a daemon, if the
// provider can use it. The others do not.
func TestFitUsesGateway(t *testing.T) {
	address, name := sandbox.Network{Egress: []string{"1.1.1.1:443"}}, sandbox.Network{Egress: []string{"api.example.com"}}
	secrets := []sandbox.SecretRef{{Name: "token"}}
	for _, tt := range []struct {
		what    string
		gateway bool
		tenant  string
		spec    sandbox.Spec
		mode    policy.Unenforceable
		plain   bool
		words   string // of the refusal
	}{
		{"an address", true, "acme", sandbox.Spec{Network: address}, "", true, ""},
		{"a name", true, "acme", sandbox.Spec{Network: name}, "", false, ""},
		{"a name that may be left out", true, "acme", sandbox.Spec{Network: name}, policy.Narrow, false, ""},
		{"a name that may be anything", true, "acme", sandbox.Spec{Network: name}, policy.LetPass, false, ""},
		{"a secret", true, "acme", sandbox.Spec{Network: address, Secrets: secrets}, "", false, ""},
		{"a name without a daemon", true, "", sandbox.Spec{Network: name}, "", false, "it does not know names"},
		{"a name without the gateway", false, "acme", sandbox.Spec{Network: name}, "", false, "it does not know names"},
		{"a secret without the gateway", false, "acme", sandbox.Spec{Network: address, Secrets: secrets}, "", false, "inserted by Atoll's egress gateway"},
	} {
		terms := offers(driver.Facts{})
		terms.Ability, terms.Gateway = &enforce.Ability{Kind: enforce.CIDRPort}, tt.gateway
		if !tt.gateway {
			terms.Ability.GatewaySetting = "THE_SETTING"
		}
		p, err := plan.Plan{Tenant: tt.tenant, Spec: tt.spec, Egress: plan.Egress{Unenforceable: tt.mode}}.Fit(terms)
		if tt.words != "" {
			wantRefusal(t, err, sandbox.CodeUnsupported, tt.words)
			var refused *sandbox.Error
			hint := "set THE_SETTING"
			if tt.gateway {
				hint = "start a daemon"
			}
			if !errors.As(err, &refused) || !strings.Contains(refused.Hint, hint) {
				t.Errorf("%s: the error is %+v, want one with the hint %q", tt.what, refused, hint)
			}
			continue
		}
		if err != nil || (p.Spec.Network.Plain != nil) != tt.plain || !p.Spec.Network.Asked() {
			t.Errorf("%s: the network is %+v, %v; want plain rules: %v", tt.what, p.Spec.Network, err, tt.plain)
		}
	}
}

func TestDemanded(t *testing.T) {
	loose := map[string]sandbox.Enforcement{"memory": {Why: "no cgroups"}}
	for name, tt := range map[string]struct {
		caps  sandbox.Resources
		quota operator.Limits
		code  sandbox.Code
	}{
		"nothing demands it": {},
		"another limit":      {caps: sandbox.Resources{CPUs: 1}},
		"a policy":           {caps: sandbox.Resources{Memory: 1 << 30}, code: sandbox.CodeUnsupported},
		"a quota":            {quota: operator.Limits{Memory: 1 << 30}, code: sandbox.CodeUnsupported},
	} {
		if err := plan.Demanded("fake", loose, tt.caps, tt.quota); sandbox.CodeOf(err) != tt.code {
			t.Errorf("%s: %v, want %q", name, err, tt.code)
		}
	}
}
