package remote

import (
	"slices"
	"testing"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/sandbox/bounds"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// What another daemon enforces depends on its provider, and on whether its gateway
// works there. A provider that does not enforce all rules by itself does so by the
// gateway.
func TestEgressAbilities(t *testing.T) {
	for name, tt := range map[string]struct {
		provider string
		says     enforce.Kind
		network  bool
		want     enforce.Kind
	}{
		"by the gateway of its machine":        {"gvisor", enforce.Full, true, enforce.HostPort},
		"without that gateway":                 {"gvisor", enforce.Full, false, enforce.None},
		"pods, by the gateway as a proxy":      {"kubernetes", enforce.Full, false, enforce.HostPort},
		"pods, by policies alone":              {"kubernetes", enforce.CIDRPort, false, enforce.CIDRPort},
		"pods, whose network enforces nothing": {"kubernetes", enforce.None, false, enforce.None},
		"a provider that is not known here":    {"unknown", enforce.Full, false, enforce.None},
		"a service with names":                 {"e2b", enforce.Host, false, enforce.Host},
	} {
		p := &Provider{peer: &peer{provider: catalog.Provider{
			Name: tt.provider, Descriptor: catalog.Descriptor{Egress: tt.says}, Capabilities: map[string]bool{"network": tt.network},
		}}}
		a := p.EgressAbility()
		ports := tt.want == enforce.Host && slices.Equal(a.NamePorts, []uint16{80, 443}) || tt.want != enforce.Host && a.NamePorts == nil
		if a.Kind != tt.want || !a.Wildcards || a.MaxTargets != bounds.MaxEgress || !ports {
			t.Errorf("%s: %+v, want %s", name, a, tt.want)
		}
	}
	for _, d := range catalog.Known() {
		if usesGateway(d.Name) != (d.Egress != enforce.Full) {
			t.Errorf("%s, which enforces %q by itself, uses the gateway: %v", d.Name, d.Egress, usesGateway(d.Name))
		}
	}
}
