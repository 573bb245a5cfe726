package policy

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// The machine's loopback can be reached only by its name, on ports that both a
// rule and the operator open.
func TestMachineHost(t *testing.T) {
	const host = sandbox.MachineHost
	operator := Operator{HostPorts: []uint16{5432, 8000}}
	for _, tt := range []struct {
		profile  sandbox.Profile
		port     uint16
		resolves bool
		allow    bool
	}{
		{sandbox.Profile{Rules: []sandbox.Rule{allow(host + ":5432")}}, 5432, true, true},
		{sandbox.Profile{Rules: []sandbox.Rule{allow("HOST.Atoll.Internal.:5432")}}, 5432, true, true},
		{sandbox.Profile{Rules: []sandbox.Rule{allow(host + ":*")}}, 8000, true, true},
		{sandbox.Profile{Rules: []sandbox.Rule{allow(host + ":*")}}, 22, true, false}, // the operator does not open it
		{sandbox.Profile{Rules: []sandbox.Rule{allow(host + ":5432")}}, 8000, true, false},
		{sandbox.Profile{Rules: []sandbox.Rule{allow("*:*")}}, 5432, false, false},
		{sandbox.Profile{Rules: []sandbox.Rule{allow("*.atoll.internal:*", "127.0.0.0/8:*", "0.0.0.0/0:*")}}, 5432, false, false},
		{sandbox.Profile{Default: sandbox.Allow}, 5432, false, false},
		{sandbox.Profile{Rules: []sandbox.Rule{deny("*:*"), allow(host + ":*")}}, 5432, false, false},
		{sandbox.Profile{Rules: []sandbox.Rule{deny("127.0.0.0/8:*"), allow(host + ":*")}}, 5432, true, false},
	} {
		p := compile(t, tt.profile, Options{Operator: operator})
		if got := p.CanResolve(host); got != tt.resolves {
			t.Errorf("%+v: resolves: %v", tt.profile, got)
		}
		for _, addr := range []string{"127.0.0.1", "::1"} {
			if addr == "::1" && tt.profile.Rules != nil && tt.profile.Rules[0].Action == sandbox.Deny {
				continue
			}
			if d := p.Connect(flow(host, addr, tt.port)); d.Allow != tt.allow {
				t.Errorf("%+v: port %d at %s: %+v (%s)", tt.profile, tt.port, addr, d, d.Message())
			}
		}
		if d := p.Connect(flow(host, "10.0.0.1", tt.port)); d.Allow {
			t.Errorf("%+v: the name leads elsewhere: %+v", tt.profile, d)
		}
		if d := p.Connect(flow("db.example.com", "127.0.0.1", tt.port)); d.Allow {
			t.Errorf("%+v: another name leads to the machine: %+v", tt.profile, d)
		}
	}
	p := compile(t, sandbox.Profile{Rules: []sandbox.Rule{allow(host + ":5432")}}, Options{
		Operator: operator, EgressLimits: []EgressLimit{{Name: "cap", Profile: sandbox.Profile{Rules: []sandbox.Rule{allow("*:*")}}}},
	})
	if d := p.Connect(flow(host, "127.0.0.1", 5432)); d.Allow {
		t.Errorf("a policy that does not name it allows it: %+v", d)
	}
}

func TestCheckReach(t *testing.T) {
	for host, refused := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:8000": true, "127.1.0.0/16:*": true, "127.0.0.0/8": true, "::1": true, "[::1]:80": true, "localhost": true,
		"LocalHost:3000": true, "api.localhost": true, "*.localhost": true,
		"0.0.0.0/0": false, "::/0": false, "10.0.0.1": false, "example.com": false, "localhost.example.com": false, sandbox.MachineHost + ":80": false, "*": false,
	} {
		if err := CheckReach(sandbox.Profile{Rules: []sandbox.Rule{allow(host)}}); (err != nil) != refused {
			t.Errorf("a rule that allows %s: %v", host, err)
		}
		if err := CheckReach(sandbox.Profile{Rules: []sandbox.Rule{deny(host)}}); err != nil {
			t.Errorf("a rule that denies %s: %v", host, err)
		}
	}
}
