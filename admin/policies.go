package admin

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
)

// Policies returns the policies of the machine that are about the caller's
// sandboxes.
func (c *Client) Policies(ctx context.Context) (out sandbox.Policies, err error) {
	return out, c.conn.Call(ctx, http.MethodGet, "/v1/policies", nil, nil, &out)
}

// ReloadPolicies has the daemon read its policies anew: all of them, or, if
// anything is wrong with one of them, none. It is for the owner of the machine.
func (c *Client) ReloadPolicies(ctx context.Context) (out sandbox.Policies, err error) {
	return out, c.conn.Call(ctx, http.MethodPost, "/v1/policies/reload", nil, struct{}{}, &out)
}

// ExplainPolicies asks what the policies say about a sandbox, which is not made.
func (c *Client) ExplainPolicies(ctx context.Context, spec sandbox.Spec) (out sandbox.PolicyAnswer, err error) {
	return out, c.conn.Call(ctx, http.MethodPost, "/v1/policies/explain", nil, spec, &out)
}
