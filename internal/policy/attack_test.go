package policy

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// TestAttackDeniedNameAtAddress connects to the address of a denied host, and
// names the host in TLS or HTTP.
func TestAttackDeniedNameAtAddress(t *testing.T) {
	write := deny("api.test")
	write.Methods = []string{"POST"}
	open := sandbox.Profile{Default: sandbox.Allow, Rules: []sandbox.Rule{
		deny("denied.test:*", "*.denied.test", "ported.test:8443"), write, allow("93.184.216.99"),
	}}
	under := Options{EgressLimits: []EgressLimit{{Name: "agents", Profile: open}}}
	for how, p := range map[string]*Policy{
		"by the profile":          compile(t, open, Options{}),
		"by a limit":              compile(t, sandbox.Profile{Default: sandbox.Allow}, under),
		"by a limit, over a rule": compile(t, sandbox.Profile{Rules: []sandbox.Rule{allow("93.184.0.0/16:*")}}, under),
	} {
		for _, tt := range []struct {
			to    Flow
			hello Hello
			allow bool
		}{
			{flow("", somewhere, 443), Hello{ServerName: "denied.test"}, false},
			{flow("", somewhere, 443), Hello{ServerName: "DENIED.test."}, false},
			{flow("", somewhere, 443), Hello{ServerName: "a.b.denied.test"}, false},
			{flow("", "::ffff:"+somewhere, 443), Hello{ServerName: "denied.test"}, false},
			{flow("", somewhere, 8443), Hello{ServerName: "ported.test"}, false},
			{flow("", somewhere, 443), Hello{ServerName: "api.test"}, false}, // its requests would not be inspected
			{flow("", somewhere, 443), Hello{ServerName: "other.test", Encrypted: true}, false},
			{flow("", somewhere, 443), Hello{ServerName: "no host"}, false},
			{flow("", somewhere, 443), Hello{ServerName: "ported.test"}, true},
			{flow("", somewhere, 443), Hello{ServerName: "other.test"}, true},
			{flow("", somewhere, 443), Hello{ServerName: "93.184.216.34"}, true},
			{flow("", somewhere, 443), Hello{}, true},                                // the server chooses the host
			{flow("", "93.184.216.99", 443), Hello{ServerName: "denied.test"}, true}, // a rule allows the address
		} {
			if how == "by a limit, over a rule" && tt.to.Addr.Is4In6() {
				tt.to.Addr = tt.to.Addr.Unmap()
			}
			c := p.Connect(tt.to)
			if !c.Allow {
				t.Fatalf("%s: %+v: %+v", how, tt.to, c)
			}
			if d := p.Hello(tt.to, c, tt.hello); d.Allow != tt.allow {
				t.Errorf("%s: %+v in a connection to %+v: %+v", how, tt.hello, tt.to, d)
			}
			if d := p.Inside(tt.to, c, tt.hello); d.Allow != tt.allow {
				t.Errorf("%s: %+v inside a connection to %+v: %+v", how, tt.hello, tt.to, d)
			}
			if byRule := tt.to.Addr.String() == "93.184.216.99"; p.Guards(tt.to) == byRule {
				t.Errorf("%s: %+v is guarded: %v", how, tt.to, !byRule)
			}
		}
		for _, host := range []string{"denied.test", "api.test", "other.test"} {
			if d := p.Request(flow("", somewhere, 80), Request{Method: "GET", Host: host, Path: "/"}); d.Allow {
				t.Errorf("%s: a request for %s at an address: %+v", how, host, d)
			}
		}
		other := flow("other.test", somewhere, 8443)
		if how == "by a limit, over a rule" {
			continue // no rule of the profile names it
		}
		if d := p.Inside(other, p.Connect(other), Hello{ServerName: "denied.test"}); d.Allow {
			t.Errorf("%s: in a connection to another name: %+v", how, d)
		}
	}
	if p := compile(t, sandbox.Profile{Default: sandbox.Allow, Rules: []sandbox.Rule{deny("198.51.100.0/24")}}, Options{}); p.Guards(flow("", somewhere, 8443)) {
		t.Error("guarded without a rule about names")
	}
}
