package control

import (
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// Egress has details of a sandbox's network rules that its Spec does not
// contain.
type Egress struct {
	// Profile is the stored profile, for a Spec that names one.
	Profile sandbox.Profile
	// EgressLimits limit it. Unenforceable is how to treat rules that the provider
	// cannot enforce. Empty: Refuse.
	EgressLimits  []policy.EgressLimit
	Unenforceable policy.Unenforceable
}

// translate translates the rules for a provider without a gateway. It returns
// nil for a provider that enforces nothing.
func (c *Control) translate(n sandbox.Network, e Egress) (*sandbox.EgressRules, error) {
	enforcer, ok := driver.As[driver.EgressEnforcer](c.cfg.Provider)
	if !ok {
		return nil, nil
	}
	profile, local := n.Local()
	if !local {
		profile = e.Profile
	}
	p, err := policy.Compile(profile, policy.Options{EgressLimits: e.EgressLimits})
	if err != nil {
		return nil, err
	}
	rules, _, err := p.Translate(enforcer.EgressAbility(), e.Unenforceable)
	return &rules, err
}
