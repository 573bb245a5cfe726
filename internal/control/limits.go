package control

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// limit fills in default limits, and returns the requested limits that the
// provider does not enforce. A default that would not be enforced is left out.
// A limit that the provider fixes cannot be requested.
func (c *Control) limit(ctx context.Context, r *sandbox.Resources) (map[string]sandbox.Enforcement, error) {
	if *r == (sandbox.Resources{}) && c.cfg.Defaults == (sandbox.Resources{}) {
		return nil, nil
	}
	facts, err := c.cfg.Facts(ctx)
	if err != nil {
		return nil, err
	}
	loose, err := Loose(&facts, *r)
	if err != nil {
		return nil, err
	}
	d := c.cfg.Defaults
	complete(&r.CPUs, d.CPUs, facts.Limits["cpus"])
	complete(&r.Memory, d.Memory, facts.Limits["memory"])
	complete(&r.Disk, d.Disk, facts.Limits["disk"])
	complete(&r.PIDs, d.PIDs, facts.Limits["pids"])
	return loose, nil
}

// Loose returns the limits that a provider does not enforce, and why. A limit
// that the provider fixes is CodeUnsupported.
func Loose(facts *driver.Facts, r sandbox.Resources) (map[string]sandbox.Enforcement, error) {
	var loose map[string]sandbox.Enforcement
	for name, asked := range map[string]bool{"cpus": r.CPUs > 0, "memory": r.Memory > 0, "disk": r.Disk > 0, "pids": r.PIDs > 0} {
		l := facts.Limits[name]
		if !asked || l.Holds {
			continue
		}
		if l.Fixed {
			return nil, &sandbox.Error{
				Code: sandbox.CodeUnsupported, Subject: name,
				Message: "the provider " + facts.Provider + " cannot limit it: " + cmp.Or(l.Why, "its size is fixed"),
				Hint:    "leave the limit out, or choose another provider",
			}
		}
		if loose == nil {
			loose = map[string]sandbox.Enforcement{}
		}
		loose[name] = sandbox.Enforcement{Why: l.Why}
	}
	return loose, nil
}

// Required returns an error that names an unenforced limit, if there is one.
func Required(loose map[string]sandbox.Enforcement) error {
	for _, name := range slices.Sorted(maps.Keys(loose)) {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: name, Message: "the limit is not enforced here: " + loose[name].Why,
			Hint: "see what is missing with: atoll doctor",
		}
	}
	return nil
}

// complete sets a limit to its default, if it is not set and would be enforced.
func complete[T int64 | float64](v *T, def T, l driver.Limit) {
	if l.Holds && *v == 0 {
		*v = def
	}
}
