package policyset_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/sandbox"
)

const agents = `policies:
  - name: agents
    tenants: [acme, "team-*"]
    labels: {tier: ["", free]}
    cpus: 2
    memory: 4g
    disk: 10GiB
    pids: 512
    lifetime: 1h
    images: [host, "debian:*", "ghcr.io/acme/*", "template:web:*", "sha256:` + hex + `"]
    mounts: [/srv/data, "/srv/read:ro"]
    secrets: [github, "ci-*"]
    secretModes: [gateway]
    egress:
      rules:
        - {name: pages, action: allow, hosts: ["*.example.com"], methods: [GET]}
  - name: nothing
    labels: {locked: "yes"}
    network: false
    mounts: []
    secrets: []
`

const hex = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func parse(t *testing.T, text string) *policyset.Set {
	t.Helper()
	b, err := policyset.Parse(map[string][]byte{"caps.yaml": []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fine is a request that agents allows.
func fine() policyset.Request {
	return policyset.Request{
		About: policyset.About{Tenant: "acme"}, Resources: sandbox.Resources{CPUs: 2, Memory: 4 << 30, Disk: 10 << 30, PIDs: 512},
		Lifetime: time.Hour, Images: []string{"debian:12"}, Network: true,
		Mounts:  []sandbox.Mount{{Source: "/srv/data/x"}, {Source: "/srv/read", ReadOnly: true}},
		Secrets: []policyset.Grant{{Name: "github", Mode: sandbox.SecretGateway}, {Name: "ci-token"}},
	}
}

// Everything beyond a policy is refused by the rule that limits it, with its
// line.
func TestCheck(t *testing.T) {
	b := parse(t, agents)
	if err := b.Check(fine()); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		rule   string
		line   int
		change func(*policyset.Request)
	}{
		"cpus":                  {"agents.cpus", 5, func(r *policyset.Request) { r.Resources.CPUs = 2.01 }},
		"no limit of cpus":      {"agents.cpus", 5, func(r *policyset.Request) { r.Resources.CPUs = 0 }},
		"no limit at all":       {"agents.memory", 6, func(r *policyset.Request) { r.Resources.Memory = -1 }},
		"memory":                {"agents.memory", 6, func(r *policyset.Request) { r.Resources.Memory++ }},
		"disk":                  {"agents.disk", 7, func(r *policyset.Request) { r.Resources.Disk++ }},
		"pids":                  {"agents.pids", 8, func(r *policyset.Request) { r.Resources.PIDs++ }},
		"lifetime":              {"agents.lifetime", 9, func(r *policyset.Request) { r.Lifetime++ }},
		"for ever":              {"agents.lifetime", 9, func(r *policyset.Request) { r.Lifetime = 0 }},
		"image":                 {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"ubuntu"} }},
		"look-alike":            {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"debian-evil:12"} }},
		"another registry":      {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"evil.example/debian:12"} }},
		"a user's debian":       {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"evil/debian:12"} }},
		"a registry's debian":   {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"debian:5000/x"} }},
		"a digest of debian":    {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"debian@sha256:" + strings.Repeat("f", 64)} }},
		"a directory":           {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"dir:/"} }},
		"an image called host":  {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"docker.io/library/host"} }},
		"called template":       {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"docker.io/library/template:web"} }},
		"called sha256":         {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"docker.io/library/sha256:" + hex} }},
		"no image name":         {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"debian:12 "} }},
		"another template":      {"agents.images", 10, func(r *policyset.Request) { r.Images = []string{"template:webby"} }},
		"mount":                 {"agents.mounts", 11, func(r *policyset.Request) { r.Mounts = []sandbox.Mount{{Source: "/srv/database"}} }},
		"mount above":           {"agents.mounts", 11, func(r *policyset.Request) { r.Mounts = []sandbox.Mount{{Source: "/srv"}} }},
		"mount that climbs":     {"agents.mounts", 11, func(r *policyset.Request) { r.Mounts = []sandbox.Mount{{Source: "/srv/data/../../etc"}} }},
		"mount to write to":     {"agents.mounts", 11, func(r *policyset.Request) { r.Mounts[1].ReadOnly = false }},
		"secret":                {"agents.secrets", 12, func(r *policyset.Request) { r.Secrets[0].Name = "gitlab" }},
		"secret that is added":  {"agents.secrets", 12, func(r *policyset.Request) { r.Secrets[1].Name = "xci-token" }},
		"mode":                  {"agents.secretModes", 13, func(r *policyset.Request) { r.Secrets[0].Mode = sandbox.SecretEnv }},
		"a team's":              {"agents.cpus", 5, func(r *policyset.Request) { r.Tenant, r.Resources.CPUs = "team-a", 3 }},
		"a label that is there": {"agents.cpus", 5, func(r *policyset.Request) { r.Labels, r.Resources.CPUs = map[string]string{"tier": "free"}, 3 }},
		"two policies":          {"nothing.mounts", 20, func(r *policyset.Request) { r.Labels, r.Network = map[string]string{"locked": "yes"}, false }},
		"no network":            {"nothing.network", 19, func(r *policyset.Request) { r.Labels, r.Mounts = map[string]string{"locked": "yes"}, nil }},
	} {
		r := fine()
		tt.change(&r)
		err := b.Check(r)
		e, ok := errors.AsType[*sandbox.Error](err)
		if !ok || e.Code != sandbox.CodeDenied || e.Rule != tt.rule || !strings.Contains(e.Message, fmt.Sprintf("caps.yaml:%d)", tt.line)) {
			t.Errorf("%s: %+v", name, err)
		}
	}
	for name, change := range map[string]func(*policyset.Request){
		"its long name":  func(r *policyset.Request) { r.Images = []string{"docker.io/library/debian:12"} },
		"no tag":         func(r *policyset.Request) { r.Images = []string{"debian"} },
		"a scheme":       func(r *policyset.Request) { r.Images = []string{"docker://debian:12"} },
		"the digest":     func(r *policyset.Request) { r.Images = []string{"sha256:" + hex} },
		"a digest below": func(r *policyset.Request) { r.Images = []string{"ghcr.io/acme/x/y@sha256:" + strings.Repeat("f", 64)} },
		"a known digest": func(r *policyset.Request) { r.Images = []string{"ubuntu@sha256:" + hex} },
		"a template":     func(r *policyset.Request) { r.Images = []string{"template:web"} },
		"either name":    func(r *policyset.Request) { r.Images = []string{"debian:12", "sha256:" + strings.Repeat("f", 64)} },
		"another tenant": func(r *policyset.Request) { r.Tenant, r.Resources.CPUs = "acme2", 9 },
		"another tier":   func(r *policyset.Request) { r.Labels, r.Resources.CPUs = map[string]string{"tier": "paid"}, 9 },
	} {
		r := fine()
		change(&r)
		if err := b.Check(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := fine()
	r.Resources.CPUs, r.Resources.Memory = 9, 9<<30
	if err := b.Check(r, policyset.Disk, policyset.Memory); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("only what changes is looked at: %v", err)
	}
	var none *policyset.Set
	if none.Check(r) != nil || none.EgressLimits(r.About) != nil || none.Digest() != "" || none.Unenforceable(r.About) != policy.Refuse {
		t.Error("no policies say something")
	}
}

// Limits that a request leaves open are filled in within the policy, and
// requested values are not changed.
func TestFill(t *testing.T) {
	c := parse(t, agents).Caps(policyset.About{Tenant: "acme"})
	for _, tt := range []struct{ have, otherwise, want sandbox.Resources }{
		{sandbox.Resources{}, sandbox.Resources{Memory: 2 << 30, Disk: 20 << 30}, sandbox.Resources{CPUs: 2, Disk: 10 << 30, PIDs: 512}},
		{sandbox.Resources{CPUs: 9, Memory: -1, Disk: 1, PIDs: 8}, sandbox.Resources{}, sandbox.Resources{CPUs: 9, Memory: -1, Disk: 1, PIDs: 8}},
	} {
		if c.Fill(&tt.have, tt.otherwise); tt.have != tt.want {
			t.Errorf("got %+v, want %+v", tt.have, tt.want)
		}
	}
	if c.Lifetime != time.Hour {
		t.Errorf("lifetime %v", c.Lifetime)
	}
}

// Another policy never allows more, and the order of files makes no difference.
func TestOnlyNarrower(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	one := func(i int) string {
		p := fmt.Sprintf("policies:\n  - name: p%d\n", i)
		for _, line := range []string{
			"tenants: [acme]", "labels: {tier: [free, \"\"]}", "cpus: 2", "cpus: 1", "memory: 1g", "lifetime: 30m", "images: [\"debian:*\"]", "images: [host]",
			"mounts: []", "network: false", "secrets: [github]", "secretModes: [env]", "egress: {rules: [{action: allow, hosts: [a.example]}]}",
		} {
			if field, _, _ := strings.Cut(line, ":"); r.IntN(3) == 0 && !strings.Contains(p, "\n    "+field+":") {
				p += "    " + line + "\n"
			}
		}
		return p
	}
	refused := 0
	for range 2000 {
		files := map[string][]byte{}
		for i := range 1 + r.IntN(3) {
			files[fmt.Sprintf("f%d.yaml", i)] = []byte(one(i))
		}
		few, err := policyset.Parse(files)
		if err != nil {
			t.Fatal(err)
		}
		files[fmt.Sprintf("%d.yaml", r.IntN(5))] = []byte(one(9))
		more, err := policyset.Parse(files)
		if err != nil {
			t.Fatal(err)
		}
		req := fine()
		if r.IntN(2) == 0 {
			req.Mounts = nil
		}
		if r.IntN(2) == 0 {
			req.Labels = map[string]string{"tier": "free"}
		}
		req.Resources.CPUs, req.Network, req.Secrets = float64(1+r.IntN(3)), r.IntN(2) == 0, req.Secrets[:r.IntN(3)]
		if few.Check(req) != nil {
			refused++
			if more.Check(req) == nil {
				t.Fatalf("%q allows what is refused without one of them: %v", files, few.Check(req))
			}
		}
		for _, c := range few.EgressLimits(req.About) {
			if !slices.ContainsFunc(more.EgressLimits(req.About), func(o policy.EgressLimit) bool { return o.Name == c.Name }) {
				t.Fatal("a limit is gone")
			}
		}
	}
	if refused < 200 {
		t.Errorf("only %d refusals", refused)
	}
}

// Errors have line numbers, and invalid input is never accepted.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "it is not YAML",
		"- a":                                    "fields with values",
		"policies: {}":                           "caps.yaml:1: a list is needed",
		"policies: []":                           "contains no policy",
		"tests: []":                              "contains no policy",
		"policies: [{}]":                         "a policy needs a name",
		"policies:\n  - name: A":                 "caps.yaml:2: a policy needs a name",
		"policies:\n  - name: a\n    cpu: 2":     `caps.yaml:3: unknown field "cpu"`,
		"policies:\n  - name: a\n    cpus: many": `caps.yaml:3: "many" is not a valid value`,
		"policies:\n  - name: a\n    cpus: -1":   "is not a valid value",
		"policies:\n  - name: a\n    cpus: .nan": "is not a valid value",
		"policies:\n  - name: a\n    memory: 0":  "is not a valid value",
		"policies:\n  - name: a\n    lifetime: soon":                                                                        "is not a valid value",
		"policies:\n  - name: a\n    cpus:":                                                                                 "has no value",
		"policies:\n  - name: a\n    images: debian":                                                                        "a list is needed",
		"policies:\n  - name: a\n    network: maybe":                                                                        "is not a valid value",
		"policies:\n  - name: a\n    mounts: [srv]":                                                                         "is not an absolute path",
		"policies:\n  - name: a\n    mounts: [/a/../b]":                                                                     "is not an absolute path",
		"policies:\n  - name: a\n    tenants: []":                                                                           "matches none",
		"policies:\n  - name: a\n    labels: {a: []}":                                                                       "no allowed values",
		"policies:\n  - name: a\n    secretModes: [x]":                                                                      "neither gateway nor env",
		"policies:\n  - name: a\n    onUnenforceable: x":                                                                    "not one of refuse, narrow and allow",
		"policies:\n  - name: a\n    egress: {rule: []}":                                                                    `unknown field "rule"`,
		"policies:\n  - name: a\n    egress: {rules: [{action: allow, hosts: [\"a b\"]}]}":                                  "caps.yaml:3: rules[1].hosts",
		"policies:\n  - name: a\n    egress: {rules: [{action: allow, hosts: [a.b], inject: [{secret: s, mode: bearer}]}]}": "may only allow or deny",
		"policies:\n  - name: a\n  - name: a":                                                                               "is in caps.yaml too",
		"policies:\n  - name: a\n    name: b":                                                                               "is set twice",
		"policies:\n  - &x {name: a}\n  - *x":                                                                               "fields with values",
		"policies:\n  - name: a\n---\npolicies: []":                                                                         "more than one document",
		"policies:\n  - name: a\ntests:\n  - want: perhaps":                                                                 "wants allow or deny",
	} {
		_, err := policyset.Parse(map[string][]byte{"caps.yaml": []byte(text)})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := fstest.MapFS{
		"a.yaml": {Data: []byte("policies: [{name: a}]")}, "b.json": {Data: []byte(`{"policies": [{"name": "b"}]}`)},
		"README.md": {Data: []byte("not one")}, ".hidden.yaml": {Data: []byte("x")}, "sub/c.yaml": {Data: []byte("x")},
	}
	b, err := policyset.Load(dir, ".")
	if err != nil || len(b.Policies()) != 2 || len(b.Digest()) != 64 {
		t.Errorf("%+v %v", b, err)
	}
	one, err := policyset.Load(dir, "a.yaml")
	if err != nil || len(one.Policies()) != 1 || one.Digest() == b.Digest() {
		t.Errorf("%+v %v", one, err)
	}
	dir["c.yml"] = &fstest.MapFile{Data: []byte("policies: [{name: a}]")}
	if _, err := policyset.Load(dir, "."); err == nil || !strings.Contains(err.Error(), "is in a.yaml too") {
		t.Errorf("a name in two files: %v", err)
	}
	for _, empty := range []fstest.MapFS{{}, {"a.txt": {}}} {
		if _, err := policyset.Load(empty, "."); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("no policies at all: %v", err)
		}
	}
	if _, err := policyset.Load(fstest.MapFS{"a.yaml": {Data: make([]byte, policyset.MaxFile+1)}}, "a.yaml"); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a file that is too large: %v", err)
	}
}

// The tests in policy files find mistakes.
func TestRun(t *testing.T) {
	b := parse(t, agents+`tests:
  - {name: small, tenant: acme, cpus: 1, image: "debian:12", want: allow}
  - {name: large, tenant: acme, cpus: 8, image: "debian:12", want: deny, rule: agents.cpus}
  - {name: reads, tenant: acme, image: host, network: true, url: "GET https://api.example.com/x", want: allow}
  - {name: writes, tenant: acme, image: host, network: true, url: "POST https://api.example.com/x", want: deny, rule: agents.egress}
  - {name: wrong want, tenant: acme, image: host, cpus: 8, want: allow}
  - {name: wrong rule, tenant: acme, image: host, cpus: 8, want: deny, rule: agents.memory}
  - {name: wrong url, tenant: acme, image: host, url: "gopher://x", want: deny}
  - {name: locked, labels: {locked: "yes"}, network: true, want: deny, rule: nothing.network}
  - {name: value, tenant: acme, image: host, secrets: [github], secretMode: env, mounts: ["/srv/read:ro"], lifetime: 5m, memory: 1g, disk: 1g, pids: 10, want: deny, rule: agents.secretModes}
`)
	for _, r := range b.Run() {
		if r.Passed == strings.HasPrefix(r.Name, "wrong") || r.Line == 0 || r.Got == "" {
			t.Errorf("%+v", r)
		}
	}
	if len(b.Run()) != 9 {
		t.Errorf("%d tests", len(b.Run()))
	}
}

func TestUnenforceable(t *testing.T) {
	for text, want := range map[string]policy.Unenforceable{
		"policies: [{name: a}]":                         policy.Refuse,
		"policies: [{name: a, onUnenforceable: allow}]": policy.LetPass,
		"policies: [{name: a, onUnenforceable: allow}, {name: b, onUnenforceable: narrow}]":                              policy.Narrow,
		"policies: [{name: a, onUnenforceable: narrow}, {name: b, onUnenforceable: refuse}]":                             policy.Refuse,
		"policies: [{name: a, onUnenforceable: allow}, {name: b, tenants: [other], onUnenforceable: refuse}, {name: c}]": policy.LetPass,
	} {
		if got := parse(t, text).Unenforceable(policyset.About{Tenant: "acme"}); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// Any file is either parsed or refused, and a parsed policy can decide.
func FuzzParse(f *testing.F) {
	f.Add([]byte(agents))
	f.Add([]byte("policies: [{name: a, labels: {a: *b}}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := policyset.Parse(map[string][]byte{"f.yaml": text})
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("%v", err)
			}
			return
		}
		_ = b.Check(fine())
		_ = b.Run()
		for _, p := range b.Policies() {
			if p.Name == "" || p.Lines["name"] == 0 {
				t.Errorf("a policy without a name or a line: %+v", p)
			}
		}
		if _, err := policy.Compile(sandbox.Profile{}, policy.Options{EgressLimits: b.EgressLimits(fine().About)}); err != nil {
			t.Errorf("a limit that cannot be enforced: %v", err)
		}
	})
}
