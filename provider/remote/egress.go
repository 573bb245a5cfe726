package remote

import (
	"fmt"
	"strings"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// EgressAbility implements driver.EgressEnforcer. It is the ability of the
// other daemon's provider, as far as a list of hosts expresses it. Before the
// other daemon has been reached it is none, and all rules are refused.
func (p *Provider) EgressAbility() enforce.Ability {
	p.mu.Lock()
	known := p.peer
	p.mu.Unlock()
	if known == nil {
		return enforce.Ability{Kind: enforce.None}
	}
	a := enforce.Ability{Kind: known.provider.Descriptor.Egress, Wildcards: true, MaxTargets: bounds.MaxEgress}
	switch {
	case known.provider.Capabilities["network"]:
		a.Kind = enforce.HostPort
	case a.Kind == enforce.Full && usesGateway(known.provider.Name):
		a.Kind = enforce.HostPort
	case a.Kind == enforce.Full:
		a.Kind = enforce.None // its gateway does not work there
	case a.Kind == enforce.Host:
		a.NamePorts = []uint16{80, 443}
	}
	return a
}

// usesGateway reports whether a provider that enforces all rules does so by the
// gateway of its daemon, because it cannot itself.
func usesGateway(name string) bool {
	d, ok := catalog.Find(name)
	return ok && d.Egress != enforce.Full
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
