package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/sandbox"
)

// PolicyService tells what sandboxes of the caller's tenant may be.
type PolicyService interface {
	Policies(ctx context.Context) (Policies, error)
	// ReloadPolicies is for the owner of the machine.
	ReloadPolicies(ctx context.Context) (Policies, error)
	ExplainPolicies(ctx context.Context, req CreateRequest) (PolicyAnswer, error)
}

// Policies are those of the machine that hold now.
type Policies struct {
	Source   string    `json:"source,omitempty" doc:"the file or directory; only for the owner of the machine"`
	Digest   string    `json:"digest,omitempty" doc:"of the texts that hold; left out if there are no policies"`
	Loaded   time.Time `json:"loaded,omitzero"`
	Problem  string    `json:"problem,omitempty" doc:"why what is in the files now does not hold; only for the owner of the machine"`
	Policies []Policy  `json:"policies"`
}

// Policy is one of them. What is left out is not bounded by it.
type Policy struct {
	Name            string              `json:"name"`
	Description     string              `json:"description,omitempty"`
	Tenants         []string            `json:"tenants,omitempty" doc:"patterns of the tenants that it is about; all if left out"`
	Labels          map[string][]string `json:"labels,omitempty" doc:"patterns of the labels of the sandboxes that it is about"`
	CPUs            *float64            `json:"cpus,omitempty"`
	Memory          *int64              `json:"memory,omitempty" doc:"bytes"`
	Disk            *int64              `json:"disk,omitempty" doc:"bytes"`
	PIDs            *int64              `json:"pids,omitempty"`
	LifetimeMS      *int64              `json:"lifetimeMs,omitempty"`
	Images          []string            `json:"images,omitzero"`
	SignedImages    []SignedImage       `json:"signedImages,omitempty" doc:"allowed as well, if signed"`
	Mounts          []string            `json:"mounts,omitzero"`
	Network         *bool               `json:"network,omitempty"`
	Egress          *sandbox.Profile    `json:"egress,omitempty" doc:"a ceiling over what may be reached"`
	Secrets         []string            `json:"secrets,omitzero"`
	SecretModes     []string            `json:"secretModes,omitzero"`
	Redact          bool                `json:"redact,omitempty" doc:"values of secrets are taken out of what commands write"`
	OnUnenforceable string              `json:"onUnenforceable,omitempty"`
	File            string              `json:"file"`
	Lines           map[string]int      `json:"lines" doc:"of its fields in the file"`
}

// SignedImage is an image that has to be signed to be allowed.
type SignedImage struct {
	Image    string   `json:"image" doc:"a pattern of names"`
	SignedBy []string `json:"signedBy" doc:"files with public keys, one of which suffices"`
}

// PolicyAnswer is what the policies say about a sandbox that is not made.
type PolicyAnswer struct {
	Allow    bool              `json:"allow"`
	Message  string            `json:"message,omitempty" doc:"why it would be refused"`
	Rule     string            `json:"rule,omitempty" doc:"that would refuse it, as POLICY.FIELD"`
	Findings []PolicyFinding   `json:"findings" doc:"what every rule that is about it says"`
	Limits   sandbox.Resources `json:"limits" doc:"the lowest that hold for it"`
	// LifetimeMS is the longest that it may live.
	LifetimeMS int64           `json:"lifetimeMs,omitempty"`
	Ceilings   []PolicyCeiling `json:"ceilings" doc:"over what it may reach"`
}

// PolicyFinding is what one rule says.
type PolicyFinding struct {
	Rule  string `json:"rule" doc:"POLICY.FIELD"`
	File  string `json:"file"`
	Line  int    `json:"line"`
	OK    bool   `json:"ok"`
	Asked string `json:"asked"`
	Limit string `json:"limit"`
}

// PolicyCeiling is a profile that has to allow as well.
type PolicyCeiling struct {
	Policy  string          `json:"policy"`
	Profile sandbox.Profile `json:"profile"`
}

type (
	policiesOutput struct{ Body Policies }
	explainInput   struct{ Body CreateRequest }
	answerOutput   struct{ Body PolicyAnswer }
)

func (a *API) policies() {
	const tag = "Policies"
	huma.Register(a.huma, operation("listPolicies", http.MethodGet, "/v1/policies", tag, "List the policies of the machine that are about your sandboxes"),
		func(ctx context.Context, _ *none) (*policiesOutput, error) {
			p, err := a.service.Policies(ctx)
			return &policiesOutput{p}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("reloadPolicies", http.MethodPost, "/v1/policies/reload", tag, "Read the policies of the machine anew"),
		func(ctx context.Context, _ *none) (*policiesOutput, error) {
			p, err := a.service.ReloadPolicies(ctx)
			return &policiesOutput{p}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("explainPolicies", http.MethodPost, "/v1/policies/explain", tag, "Ask what the policies say about a sandbox, without making it"),
		func(ctx context.Context, in *explainInput) (*answerOutput, error) {
			p, err := a.service.ExplainPolicies(ctx, in.Body)
			return &answerOutput{p}, a.problem(ctx, err)
		})
}
