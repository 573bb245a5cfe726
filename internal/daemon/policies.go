package daemon

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/policy/policyset"
)

// policyPeriod is how often the files of policies are looked at.
const policyPeriod = 2 * time.Second

// policies is where the policies come from.
func (d *Daemon) policies() policies.Files {
	if d.opts.Policies == "" {
		return policies.Files{}
	}
	return policies.Files{Source: d.opts.Policies, Load: func() (*policyset.Set, error) { return policyset.Open(d.opts.Policies) }}
}

// Reload reads the policies anew. What is wrong with them is an error, and
// those that held before hold on.
func (d *Daemon) Reload(ctx context.Context) error { return d.services.Policies.Load(ctx) }

// watchPolicies looks whether the files of policies are others, until ctx ends.
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
			d.opts.Logger.Error("the policies are invalid; the previous ones stay in force", "error", err)
		}
		if said = ""; err != nil {
			said = err.Error()
		}
	}
}
