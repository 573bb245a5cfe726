package daemon

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/policy/policyset"
)

// policyPeriod is the interval at which policy files are checked for changes.
const policyPeriod = 2 * time.Second

// policies returns the source of the policies.
func (d *Daemon) policies() policies.Files {
	if d.opts.Policies == "" {
		return policies.Files{}
	}
	return policies.Files{Source: d.opts.Policies, Load: func() (*policyset.Set, error) { return policyset.Open(d.opts.Policies) }}
}

// Reload reads the policies again. If they are invalid, it returns an error,
// and the old policies stay in force.
func (d *Daemon) Reload(ctx context.Context) error { return d.services.Policies.Load(ctx) }

// watchPolicies reloads changed policy files until ctx ends.
func (d *Daemon) watchPolicies(ctx context.Context) {
	tick := time.NewTicker(policyPeriod)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := d.services.Policies.Load(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			what := "the policies are invalid; the previous ones stay in force"
			if policies.InForce(err) {
				what = "the new policies could not be applied to the networks of all sandboxes"
			}
			d.opts.Logger.Error(what, "error", err)
		}
		if said = ""; err != nil {
			said = err.Error()
		}
	}
}
