package policy

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// passes is what a provider lets through by rules: all that it knows is the name,
// or the address, and perhaps the port.
func passes(a enforce.Ability, rules sandbox.EgressRules, f Flow) bool {
	return rules.Open || slices.ContainsFunc(rules.Allow, func(t sandbox.EgressTarget) bool {
		in := t.Ports == nil || slices.ContainsFunc(t.Ports, func(r sandbox.PortRange) bool { return r.Low <= f.Port && f.Port <= r.High })
		if t.Host == "" {
			return in && f.Name == "" && t.Prefix.Contains(f.Addr)
		}
		if t.Ports == nil && a.NamePorts != nil {
			in = slices.Contains(a.NamePorts, f.Port)
		}
		suffix, wild := strings.CutPrefix(t.Host, "*")
		return in && f.Name != "" && (f.Name == t.Host || wild && strings.HasSuffix(f.Name, suffix))
	})
}

var someAbilities = []enforce.Ability{
	{},
	{Kind: enforce.None},
	{Kind: enforce.Switch},
	{Kind: enforce.CIDR},
	{Kind: enforce.CIDRPort},
	{Kind: enforce.Host},
	{Kind: enforce.Host, NamePorts: []uint16{80, 443}, Wildcards: true},
	{Kind: enforce.Host, Wildcards: true},
	{Kind: enforce.HostPort, Wildcards: true},
	{Kind: enforce.HostPort, MaxTargets: 3},
}

// For any profile, limits and provider: unless rules are let pass, a provider
// that follows its rules allows nothing that the profile denies, or that it
// would have to inspect further.
func TestTranslateNeverWidens(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 4))
	operator := Operator{Allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("169.254.0.0/16")}}
	hosts := append([]string{"10.0.0.0/8:*", "0.0.0.0/0:*", "[::/0]:*", "169.254.169.254:*", "a.example:*", "192.5.6.0/24:*", "*.a.example:*"}, someHosts...)
	addrs := append([]string{"10.1.2.3", "10.2.3.4", "169.254.169.254", "127.0.0.1", "192.168.1.1", "fd00::1", "192.5.6.8"}, someAddrs...)
	passed, refused, exact := 0, 0, 0
	for range 3000 {
		var layers []sandbox.Profile
		for range 1 + r.IntN(2) {
			p := sandbox.Profile{Rules: randomRules(r), Default: pick(r, []sandbox.Action{sandbox.Deny, sandbox.Deny, sandbox.Allow})}
			for i := range p.Rules {
				p.Rules[i].Hosts = []string{pick(r, hosts)}
				if r.IntN(2) == 0 {
					p.Rules[i].Methods, p.Rules[i].Paths = nil, nil
				}
			}
			layers = append(layers, p)
		}
		var limits []EgressLimit
		for _, c := range layers[1:] {
			limits = append(limits, EgressLimit{"c", c})
		}
		p := compile(t, layers[0], Options{Operator: operator, EgressLimits: limits})
		a, mode := pick(r, someAbilities), pick(r, []Unenforceable{"", Refuse, Narrow})
		rules, lost, err := p.Translate(a, mode)
		if err != nil {
			refused++
			if sandbox.CodeOf(err) != sandbox.CodeUnsupported || len(lost) == 0 || !strings.Contains(err.Error(), lost[0].Rule) {
				t.Fatalf("%+v: %v", lost, err)
			}
			continue
		}
		if len(lost) == 0 {
			exact++
		}
		for range 40 {
			f := flow(pick(r, someNames), "", pick(r, somePorts))
			if f.Name == "" {
				if f.Addr, err = netip.ParseAddr(pick(r, addrs)); err != nil {
					continue
				}
			}
			if !passes(a, rules, f) {
				continue
			}
			passed++
			if c := p.Connect(f); !c.Allow || c.Inspect && !allRequests(p, f) {
				t.Fatalf("%+v: the provider %+v lets it pass by %+v, and %+v of %+v", f, a, rules, c, layers)
			}
		}
	}
	if passed < 300 || refused < 500 || exact < 100 {
		t.Errorf("%d flows passed, %d profiles refused, %d translated exactly", passed, refused, exact)
	}
}

// allRequests reports whether no request on a connection is denied.
func allRequests(p *Policy, f Flow) bool {
	host := f.Name
	if host == "" {
		if host = f.Addr.String(); f.Addr.Is6() {
			host = "[" + host + "]"
		}
	}
	for _, method := range []string{"GET", "POST", "PUT"} {
		for _, path := range somePaths {
			if !p.Request(f, Request{Method: method, TLS: true, Host: host, Path: path}).Allow {
				return false
			}
		}
	}
	return true
}

// Rules that the provider can enforce are translated exactly, and others are
// refused by name.
func TestTranslate(t *testing.T) {
	e2b := enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{80, 443}, Wildcards: true}
	docker := enforce.Ability{Kind: enforce.Switch}
	kubernetes := enforce.Ability{Kind: enforce.CIDRPort}
	nothing := enforce.Ability{Kind: enforce.None}
	plain := sandbox.Profile{Rules: []sandbox.Rule{allow("api.example.com", "*.example.org")}}
	ssh := sandbox.Profile{Rules: []sandbox.Rule{{Name: "ssh", Action: sandbox.Allow, Hosts: []string{"192.5.6.0/24:22"}}}}
	get := sandbox.Profile{Rules: []sandbox.Rule{allow("a.example"), {Name: "read", Action: sandbox.Allow, Hosts: []string{"b.example"}, Methods: []string{"GET"}}}}
	for name, tt := range map[string]struct {
		profile sandbox.Profile
		ability enforce.Ability
		mode    Unenforceable
		want    string // the targets, or the rule that is refused
	}{
		"names":                      {plain, e2b, Refuse, "api.example.com *.example.org"},
		"no names":                   {plain, kubernetes, Refuse, "!rule 1"},
		"no names, narrowed":         {plain, kubernetes, Narrow, ""},
		"no names, let pass":         {plain, kubernetes, LetPass, "open"},
		"a port":                     {ssh, kubernetes, Refuse, "192.5.6.0/24:22"},
		"no ports":                   {ssh, e2b, Refuse, "!ssh"},
		"no ports, let pass":         {ssh, e2b, LetPass, "192.5.6.0/24"},
		"a method":                   {get, e2b, Refuse, "!read"},
		"a method, narrowed":         {get, e2b, Narrow, "a.example"},
		"a method, let pass":         {get, e2b, LetPass, "a.example b.example"},
		"nothing at all":             {sandbox.Profile{}, docker, Refuse, ""},
		"something":                  {plain, docker, Refuse, "!rule 1"},
		"something, narrowed":        {plain, docker, Narrow, ""},
		"something, let pass":        {plain, docker, LetPass, "open"},
		"nothing on a bare machine":  {sandbox.Profile{}, nothing, Refuse, "!default"},
		"narrowed on a bare machine": {sandbox.Profile{}, nothing, Narrow, "!default"},
		"let pass on a bare machine": {sandbox.Profile{}, nothing, LetPass, "open"},
	} {
		rules, _, err := compile(t, tt.profile, Options{}).Translate(tt.ability, tt.mode)
		var got []string
		for _, x := range rules.Allow {
			text := x.Host
			if x.Prefix.IsValid() {
				text = x.Prefix.String()
			}
			for _, r := range x.Ports {
				text = joinPort(Host{Name: text}, r.Low)
			}
			got = append(got, text)
		}
		text := strings.Join(got, " ")
		if e, ok := errors.AsType[*sandbox.Error](err); ok {
			text = "!" + e.Rule
		} else if rules.Open {
			text = "open"
		}
		if text != tt.want {
			t.Errorf("%s: %q, want %q (%v)", name, text, tt.want, err)
		}
	}
	open := compile(t, sandbox.Profile{Default: sandbox.Allow, Rules: []sandbox.Rule{{Action: sandbox.Deny, Hosts: []string{"192.5.6.0/24:*"}}}}, Options{})
	rules, lost, err := open.Translate(kubernetes, Refuse)
	for addr, want := range map[string]bool{"93.184.216.34": true, "2606:2800::1": true, "192.5.6.7": false, "10.0.0.1": false, "169.254.169.254": false, "168.63.129.16": false, "fd00::1": false} {
		if f := flow("", addr, 443); passes(kubernetes, rules, f) != want {
			t.Errorf("%s: want %v (%v %v)", addr, want, lost, err)
		}
	}
}
