package control

import (
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// Egress is what the caller knows of the rules of a sandbox that its Spec does
// not say.
type Egress struct {
	// Profile is the stored one, for a Spec that names it.
	Profile sandbox.Profile
	// Ceilings are set over it, and Unenforceable says what is done about rules
	// that the provider cannot enforce. Empty: Refuse.
	Ceilings      []policy.Ceiling
	Unenforceable policy.Unenforceable
}

// translate has a provider without a gateway enforce rules as far as it can. It
// returns nil for one that enforces nothing by itself.
func (c *Control) translate(n sandbox.Network, e Egress) (*sandbox.EgressRules, error) {
	enforcer, ok := driver.As[driver.EgressEnforcer](c.cfg.Provider)
	if !ok {
		return nil, nil
	}
	profile, local := n.Local()
	if !local {
		profile = e.Profile
	}
	p, err := policy.Compile(profile, policy.Options{Ceilings: e.Ceilings})
	if err != nil {
		return nil, err
	}
	rules, _, err := p.Translate(enforcer.EgressAbility(), e.Unenforceable)
	return &rules, err
}
