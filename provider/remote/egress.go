package remote

import (
	"fmt"
	"strings"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/sandbox"
)

// EgressAbility implements driver.EgressEnforcer. It is the ability of the
// other daemon's provider, as far as a list of hosts expresses it. Before the
// other daemon has been reached it is none, and all rules are refused.
func (p *Provider) EgressAbility() sandbox.EgressAbility {
	p.mu.Lock()
	known := p.peer
	p.mu.Unlock()
	if known == nil {
		return sandbox.EgressAbility{Kind: sandbox.EgressNone}
	}
	a := sandbox.EgressAbility{Kind: known.provider.Descriptor.Egress, Wildcards: true, MaxTargets: sandbox.MaxEgress}
	switch {
	case known.provider.Capabilities["network"]:
		a.Kind = sandbox.EgressHostPort
	case a.Kind == sandbox.EgressFull && usesGateway(known.provider.Name):
		a.Kind = sandbox.EgressHostPort
	case a.Kind == sandbox.EgressFull:
		a.Kind = sandbox.EgressNone // its gateway does not work there
	case a.Kind == sandbox.EgressHost:
		a.NamePorts = []uint16{80, 443}
	}
	return a
}

// usesGateway reports whether a provider that enforces all rules does so by the
// gateway of its daemon, because it cannot itself.
func usesGateway(name string) bool {
	d, ok := catalog.Find(name)
	return ok && d.Egress != sandbox.EgressFull
}

// network converts a sandbox's network rules to those of the other daemon.
func network(n sandbox.Network) (sandbox.Network, error) {
	switch {
	case !n.Asked():
		return sandbox.Network{}, nil
	case n.Plain == nil:
		return sandbox.Network{}, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "remote.create", Subject: "network", Message: "the rules were not converted for the other daemon",
			Hint: "leave the network out: the sandbox has none",
		}
	case n.Plain.Open:
		return sandbox.Network{Inline: &sandbox.Profile{Default: sandbox.Allow}}, nil
	}
	out := sandbox.Network{Egress: []string{}}
	for _, t := range n.Plain.Allow {
		out.Egress = append(out.Egress, patterns(t)...)
	}
	return out, nil
}

// patterns returns a target as patterns of sandbox.Rule.
func patterns(t sandbox.EgressTarget) (all []string) {
	host := t.Host
	if host == "" {
		host = t.Prefix.String()
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if t.Ports == nil {
		return []string{host + ":*"}
	}
	for _, r := range t.Ports {
		port := fmt.Sprint(r.Low)
		if r.High != r.Low {
			port = fmt.Sprintf("%d-%d", r.Low, r.High)
		}
		all = append(all, host+":"+port)
	}
	return all
}
