package docker

import "github.com/atoll-run/atoll/sandbox"

// EgressAbility implements driver.EgressEnforcer: a container has a network or
// none.
func (*Provider) EgressAbility() sandbox.EgressAbility {
	return sandbox.EgressAbility{Kind: sandbox.EgressSwitch}
}

// network returns the network of a container.
func (p *Provider) network(n sandbox.Network) (string, error) {
	refuse := func(message string) (string, error) {
		return "", &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "docker.create", Subject: "network", Message: message,
			Hint: "leave the network out: the sandbox has none",
		}
	}
	switch {
	case !n.Asked():
		return "none", nil
	case n.Plain == nil:
		return refuse("the rules were not translated into what Docker enforces")
	case n.Plain.Open:
		return p.opts.Network, nil
	case len(n.Plain.Allow) > 0:
		return refuse("Docker cannot let a container reach some addresses and not others")
	}
	return "none", nil
}
