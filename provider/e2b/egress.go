package e2b

import "github.com/atoll-run/atoll/sandbox"

// EgressAbility implements driver.EgressEnforcer. The service matches names in
// HTTP requests and TLS hellos on their usual ports, and addresses on all
// ports.
func (*Provider) EgressAbility() sandbox.EgressAbility {
	return sandbox.EgressAbility{Kind: sandbox.EgressHost, NamePorts: []uint16{80, 443}, Wildcards: true}
}

// everything is the deny rule that accompanies allow rules.
const everything = "0.0.0.0/0"

// egress converts egress rules to the service's format. It denies everything
// else in both ways that the service has.
func egress(rules *sandbox.EgressRules) (internet bool, n *boxNetwork) {
	switch {
	case rules == nil:
		return false, nil
	case rules.Open:
		return true, nil
	case len(rules.Allow) == 0:
		return false, nil
	}
	n = &boxNetwork{DenyOut: []string{everything}}
	for _, t := range rules.Allow {
		if t.Host != "" {
			n.AllowOut = append(n.AllowOut, t.Host)
		} else {
			n.AllowOut = append(n.AllowOut, t.Prefix.String())
		}
	}
	return false, n
}
