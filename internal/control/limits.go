package control

import (
	"cmp"
	"context"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// limit completes the limits of a sandbox with the defaults, and returns those
// that somebody asked for and the provider does not enforce. A default that
// would not hold is left out. A limit that the provider fixes by itself cannot
// be asked for.
func (c *Control) limit(ctx context.Context, r *sandbox.Resources) (map[string]sandbox.Enforcement, error) {
	if *r == (sandbox.Resources{}) && c.cfg.Defaults == (sandbox.Resources{}) {
		return nil, nil
	}
	facts, err := c.cfg.Facts(ctx)
	if err != nil {
		return nil, err
	}
	var loose map[string]sandbox.Enforcement
	d := c.cfg.Defaults
	for name, holds := range map[string]bool{
		"cpus":   complete(&r.CPUs, d.CPUs, facts.Limits["cpus"]),
		"memory": complete(&r.Memory, d.Memory, facts.Limits["memory"]),
		"disk":   complete(&r.Disk, d.Disk, facts.Limits["disk"]),
		"pids":   complete(&r.PIDs, d.PIDs, facts.Limits["pids"]),
	} {
		if holds {
			continue
		}
		l := facts.Limits[name]
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

// complete gives a limit that nobody asked for its default, if that holds. It
// reports false for a limit that was asked for and does not hold.
func complete[T int64 | float64](v *T, def T, l driver.Limit) bool {
	switch {
	case l.Holds && *v == 0:
		*v = def
	case !l.Holds && *v > 0:
		return false
	}
	return true
}
