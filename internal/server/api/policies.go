package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Policies returns the policies that apply to the caller's tenant.
type Policies interface {
	Get(ctx context.Context) (operator.Policies, error)
	// Reload is for the owner of the machine.
	Reload(ctx context.Context) (operator.Policies, error)
	Explain(ctx context.Context, spec sandbox.Spec) (operator.PolicyAnswer, error)
}

type (
	policiesOutput struct{ Body operator.Policies }
	explainInput   struct{ Body sandbox.CreateRequest }
	answerOutput   struct{ Body operator.PolicyAnswer }
)

func (a *API) policies() {
	const tag = "Policies"
	huma.Register(a.huma, operation("listPolicies", http.MethodGet, "/v1/policies", tag, "List the policies that apply to your sandboxes", ops.PolicyGet),
		func(ctx context.Context, _ *none) (*policiesOutput, error) {
			p, err := a.services.Policies.Get(ctx)
			return &policiesOutput{p}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("reloadPolicies", http.MethodPost, "/v1/policies/reload", tag, "Reload the policy files", ops.PolicyReload),
		func(ctx context.Context, _ *none) (*policiesOutput, error) {
			p, err := a.services.Policies.Reload(ctx)
			return &policiesOutput{p}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("explainPolicies", http.MethodPost, "/v1/policies/explain", tag, "Check a sandbox against the policies, without making it", ops.PolicyExplain),
		func(ctx context.Context, in *explainInput) (*answerOutput, error) {
			p, err := a.services.Policies.Explain(ctx, in.Body.Spec)
			return &answerOutput{p}, a.problem(ctx, err)
		})
}
