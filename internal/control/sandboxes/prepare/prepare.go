// Package prepare finds what is needed before a sandbox is made, or made again.
package prepare

import (
	"context"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/tenants"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Preparer prepares sandboxes. The caller fills in the fields.
type Preparer struct {
	Policies  *policies.Service
	Snapshots *snapshots.Service
	Tenants   *tenants.Service
	// Gate limits concurrent creations. Nil: no limit.
	Gate *admission.Gate
}

// Again returns the request to make a recorded sandbox again.
func (s *Preparer) Again(ctx context.Context, b *store.Sandbox) (ask plan.Ask, err error) {
	spec := b.Spec
	spec.Provider = b.Provider
	spec.ID, spec.Name, spec.Labels, spec.Resources, spec.Snapshot = b.ID, b.Name, b.Labels, b.Resources, ""
	if spec.Lifetime.Timeout > 0 { // otherwise the daemon enforces the lifetime
		spec.Lifetime.Timeout = b.Rest.Left
	}
	if spec.Env, err = s.Snapshots.Environment(b); err != nil {
		return ask, err
	}
	ask = plan.Ask{
		Request: plan.Request{CreateRequest: sandbox.CreateRequest{Spec: spec, Pull: string(engine.PullNever)}}, Tenant: b.Tenant, Images: []string{b.Image, spec.Image}, Again: true,
	}
	ask.Policies, err = s.Policies.Known(ctx, b.Tenant, &spec, ask.Images)
	ask.Policies.Fetches = false // it keeps its image
	return ask, err
}

// Fit returns the plan for a sandbox whose provider is given.
func (s *Preparer) Fit(ctx context.Context, be *providers.Backend, a audit.Action, ask plan.Ask) (plan.Plan, error) {
	p, err := plan.Draft(ask)
	if err != nil {
		return p, s.Policies.Refused(ctx, a, err)
	}
	return be.Engine.Fit(ctx, p)
}

// Demanded refuses those limits in loose, which the provider does not enforce,
// that the policies (caps) or a quota require.
func (s *Preparer) Demanded(ctx context.Context, be *providers.Backend, tenant string, caps sandbox.Resources, loose map[string]sandbox.Enforcement) error {
	quotas, err := s.Tenants.Limits(ctx, tenant)
	if err != nil {
		return err
	}
	return plan.Demanded(be.Name, loose, caps, quotas)
}

// Admit waits until a sandbox of a tenant may be created with a provider.
// The caller calls leave after the creation. The limit applies only to
// sandboxes that run on this machine.
func (s *Preparer) Admit(ctx context.Context, be *providers.Backend, tenant string) (leave func(), err error) {
	facts, err := be.Facts(ctx)
	if err != nil || facts.Engine == "" && !facts.SharesFiles {
		return func() {}, err
	}
	return s.Gate.Enter(ctx, tenant)
}
