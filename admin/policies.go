package admin

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Policies returns the policies of the machine that apply to the caller's
// sandboxes.
func (c *Client) Policies(ctx context.Context) (out operator.Policies, err error) {
	return out, c.conn.Call(ctx, http.MethodGet, "/v1/policies", nil, nil, &out)
}

// ReloadPolicies makes the daemon reload its policy files. If one of them is
// not valid, the old policies stay. It is for the owner of the machine.
func (c *Client) ReloadPolicies(ctx context.Context) (out operator.Policies, err error) {
	return out, c.conn.Call(ctx, http.MethodPost, "/v1/policies/reload", nil, struct{}{}, &out)
}

// ExplainPolicies checks a Spec against the policies. No sandbox is made.
func (c *Client) ExplainPolicies(ctx context.Context, spec sandbox.Spec) (out operator.PolicyAnswer, err error) {
	return out, c.conn.Call(ctx, http.MethodPost, "/v1/policies/explain", nil, spec, &out)
}
