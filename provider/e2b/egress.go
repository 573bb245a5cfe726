package e2b

import "github.com/atoll-run/atoll/sandbox"

// EgressAbility implements driver.EgressEnforcer: the service knows names, by
// the requests of HTTP and the hellos of TLS on their usual ports, and addresses
// with all their ports.
func (*Provider) EgressAbility() sandbox.EgressAbility {
	return sandbox.EgressAbility{Kind: sandbox.EgressHost, NamePorts: []uint16{80, 443}, Wildcards: true}
}

// everything is the deny rule that goes with allow rules.
const everything = "0.0.0.0/0"

// egress says in the service's words what a sandbox may reach. Whatever is not
// allowed is denied, and that in both ways that the service has for it.
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
