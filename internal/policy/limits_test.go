package policy

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// With limits, exactly those requests are allowed that the profile and each
// limit allow, in any order.
func TestUnderEgressLimits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	denied := 0
	for range 600 {
		profiles := []sandbox.Profile{}
		for range 1 + r.IntN(3) {
			p := sandbox.Profile{Rules: randomRules(r), Default: pick(r, []sandbox.Action{sandbox.Deny, sandbox.Deny, sandbox.Allow})}
			if r.IntN(20) == 0 {
				off := false
				p.Internet = &off
			}
			profiles = append(profiles, p)
		}
		alone := make([]*Policy, len(profiles))
		var limits []EgressLimit
		for i, p := range profiles {
			alone[i] = compile(t, p, Options{})
			if i > 0 {
				limits = append(limits, EgressLimit{Name: fmt.Sprintf("c%d", i), Profile: p})
			}
		}
		both := compile(t, profiles[0], Options{EgressLimits: limits})
		for range 20 {
			f := flow(pick(r, someNames), pick(r, someAddrs), pick(r, somePorts))
			if f.Name == "" && !f.Addr.IsValid() {
				continue
			}
			denied += compareUnder(t, both, alone, f, r)
		}
		if t.Failed() {
			t.Fatalf("%+v", profiles)
		}
	}
	if denied < 100 {
		t.Errorf("a limit decided only %d times", denied)
	}
}

func compareUnder(t *testing.T, both *Policy, alone []*Policy, f Flow, r *rand.Rand) (denied int) {
	t.Helper()
	host := f.Name
	if host == "" {
		if host = f.Addr.String(); f.Addr.Is6() {
			host = "[" + host + "]"
		}
	}
	req := Request{Method: pick(r, []string{"GET", "POST", "PUT"}), TLS: true, Host: host, Path: pick(r, somePaths), WebSocket: r.IntN(5) == 0}
	resolves, connects, inspects, requests := true, true, false, true
	for _, p := range alone {
		resolves = resolves && p.CanResolve(f.Name)
		c := p.Connect(f)
		connects, inspects = connects && c.Allow, inspects || c.Inspect
		requests = requests && p.Request(f, req).Allow
	}
	if both.CanResolve(f.Name) != resolves {
		t.Errorf("%s resolves: %v, want %v", f.Name, !resolves, resolves)
	}
	c := both.Connect(f)
	if c.Allow != connects || c.Allow && (c.Inspect != inspects || c.HostOnly == inspects) {
		t.Errorf("%+v connects: %+v, want %v, inspected %v", f, c, connects, inspects)
	}
	d := both.Request(f, req)
	if d.Allow != requests {
		t.Errorf("%+v %+v: %+v, want %v", f, req, d, requests)
	}
	if d.Reason == AboveEgressLimit {
		denied++
		if d.Number != 0 || !strings.HasPrefix(d.Rule, "policy c") || d.Detail == "" || len(d.Inject)+len(d.Swaps) != 0 || d.Path != "" {
			t.Errorf("a refusal says %+v", d)
		}
	}
	return denied
}

// A refusal by a limit names the limit. Rules that make no sense in a
// limit are refused.
func TestEgressLimit(t *testing.T) {
	deny := sandbox.Rule{Name: "no admin", Action: sandbox.Deny, Hosts: []string{"api.example.com"}, Paths: []string{"/admin/**"}}
	own := sandbox.Profile{Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"api.example.com", "evil.example"}, Inject: []sandbox.Injection{{Secret: "s", Mode: sandbox.InjectBearer}}}}}
	p := compile(t, own, Options{EgressLimits: []EgressLimit{{Name: "agents", Profile: sandbox.Profile{Rules: []sandbox.Rule{deny, allow("api.example.com")}}}}})
	for target, want := range map[string]string{
		"https://api.example.com/v1":      "",
		"https://api.example.com/admin/x": "denied by no admin of the policy agents",
		"https://evil.example/":           "the policy agents does not allow it, whatever the rules of the sandbox say",
		"https://other.example/":          "denied, because no rule matches",
	} {
		e, err := p.Explain("GET", target)
		if err != nil || e.Allow != (want == "") || want != "" && e.Message != want {
			t.Errorf("%s: %+v %v", target, e, err)
		}
	}
	if p.CanResolve("evil.example") {
		t.Error("a name resolves although the limit does not allow it")
	}
	for name, change := range map[string]func(*sandbox.Rule){
		"inject":  func(r *sandbox.Rule) { r.Inject = []sandbox.Injection{{Secret: "s", Mode: sandbox.InjectBearer}} },
		"limits":  func(r *sandbox.Rule) { r.Limits = &sandbox.RuleLimits{PerMinute: 1} },
		"filters": func(r *sandbox.Rule) { r.Filters = []sandbox.Filter{{Type: sandbox.FilterSize, Bytes: 1}} },
		"tls":     func(r *sandbox.Rule) { r.TLS = sandbox.Passthrough },
		"hosts":   func(r *sandbox.Rule) { r.Hosts = nil },
	} {
		r := allow("api.example.com")
		change(&r)
		err := CheckEgressLimit(EgressLimit{Profile: sandbox.Profile{Rules: []sandbox.Rule{r}}})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Profile and limit together allow no more than either alone.
func FuzzEgressLimit(f *testing.F) {
	f.Add("*.example.com", "/a/**", "api.example.com", "/**", "api.example.com", uint16(443), "/a/b", false, true)
	f.Add("*", "/", "192.0.2.0/24", "/x", "", uint16(80), "/", true, false)
	f.Fuzz(func(t *testing.T, host, path, above, abovePath, name string, port uint16, asked string, open, deny bool) {
		one := sandbox.Profile{Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{host}, Paths: []string{path}}}}
		two := sandbox.Profile{Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{above}, Paths: []string{abovePath}}}}
		if open {
			one.Default = sandbox.Allow
		}
		if deny {
			two.Rules[0].Action, two.Default = sandbox.Deny, sandbox.Allow
		}
		a, err := Compile(one, Options{})
		b, err2 := Compile(two, Options{})
		if err != nil || err2 != nil {
			return
		}
		both, err := Compile(one, Options{EgressLimits: []EgressLimit{{Name: "c", Profile: two}}})
		if err != nil {
			t.Fatal(err)
		}
		fl := Flow{Name: name, Port: port}
		req := Request{Method: "GET", TLS: true, Host: name, Path: asked}
		if got, want := both.Request(fl, req).Allow, a.Request(fl, req).Allow && b.Request(fl, req).Allow; got != want {
			t.Errorf("%v, want %v", got, want)
		}
		if got, want := both.Connect(fl).Allow, a.Connect(fl).Allow && b.Connect(fl).Allow; got != want {
			t.Errorf("connects: %v, want %v", got, want)
		}
		if got, want := both.CanResolve(name), a.CanResolve(name) && b.CanResolve(name); got != want {
			t.Errorf("resolves: %v, want %v", got, want)
		}
	})
}
