package policy

import (
	"fmt"

	"github.com/atoll-run/atoll/sandbox"
)

// Ceiling is a profile that limits another profile. A request must be allowed
// by the sandbox's own rules and by every ceiling. A ceiling adds no
// credentials and counts nothing.
type Ceiling struct {
	Name    string          `json:"name"` // of the policy that the ceiling belongs to
	Profile sandbox.Profile `json:"profile"`
}

// CheckCeiling reports what is wrong with a ceiling. Rules that add or count
// something are refused: they belong into a profile.
func CheckCeiling(c Ceiling) error {
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

// compileCeilings compiles ceilings. Their rules are named after their
// policies.
func compileCeilings(ceilings []Ceiling, operator Operator) ([]*Policy, error) {
	var out []*Policy
	for _, c := range ceilings {
		if err := CheckCeiling(c); err != nil {
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

// under applies the ceilings to a decision.
func (p *Policy) under(d Decision, ask func(ceiling *Policy) Decision) Decision {
	for _, c := range p.ceilings {
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

// refusal is the refusal by a ceiling. It has no rule number, since numbers
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
	return Decision{Reason: AboveCeiling, Rule: name, Detail: d.Message()}
}
