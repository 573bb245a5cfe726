package policy

import (
	"fmt"

	"github.com/atoll-run/atoll/sandbox"
)

// EgressLimit is a profile that limits another profile. A request must be allowed
// by the sandbox's own rules and by every limit. A limit adds no
// credentials and counts nothing.
type EgressLimit struct {
	Name    string          `json:"name"` // of the policy that the limit belongs to
	Profile sandbox.Profile `json:"profile"`
}

// CheckEgressLimit reports what is wrong with a limit. Rules that add or count
// something are refused: they belong into a profile.
func CheckEgressLimit(c EgressLimit) error {
	for i := range c.Profile.Rules {
		r := &c.Profile.Rules[i]
		what := ""
		switch {
		case len(r.Inject) > 0:
			what = "inject"
		case r.Limits != nil:
			what = "limits"
		case len(r.Filters) > 0:
			what = "filters"
		case r.TLS != "":
			what = "tls"
		}
		if what != "" {
			return invalid(field(i+1, what), "a policy's egress limit may only allow or deny; put this into a profile")
		}
	}
	return Check(c.Profile)
}

// compileEgressLimits compiles limits. Their rules are named after their
// policies.
func compileEgressLimits(limits []EgressLimit, operator Operator) ([]*Policy, error) {
	var out []*Policy
	for _, c := range limits {
		if err := CheckEgressLimit(c); err != nil {
			return nil, err
		}
		p, err := Compile(c.Profile, Options{Operator: operator})
		if err != nil {
			return nil, err
		}
		p.name = c.Name
		out = append(out, p)
	}
	return out, nil
}

// under applies the limits to a decision.
func (p *Policy) under(d Decision, ask func(limit *Policy) Decision) Decision {
	for _, c := range p.limits {
		if !d.Allow {
			return d
		}
		above := ask(c)
		if !above.Allow {
			return c.refusal(above)
		}
		if above.Inspect {
			d.Inspect, d.HostOnly = true, false
		}
	}
	return d
}

// refusal is the refusal by a limit. It has no rule number, since numbers
// count uses of the sandbox's own rules.
func (p *Policy) refusal(d Decision) Decision {
	name := "policy " + p.name
	switch {
	case d.Reason == ByRule:
		d.Detail = fmt.Sprintf("denied by %s of the %s", d.Rule, name)
		name += ": " + d.Rule
	case d.Reason == ByDefault:
		d.Detail = fmt.Sprintf("the %s does not allow it, whatever the rules of the sandbox say", name)
	}
	return Decision{Reason: AboveEgressLimit, Rule: name, Detail: d.Message()}
}
