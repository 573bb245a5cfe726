package atoll

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
)

// Providers returns the providers of the daemon.
func (c *Client) Providers(ctx context.Context) ([]sandbox.Provider, error) {
	var out struct{ Providers []sandbox.Provider }
	return out.Providers, c.conn.Call(ctx, http.MethodGet, "/v1/providers", nil, nil, &out)
}

// ChooseProvider returns the provider that fits the needs of a sandbox. It
// creates nothing.
func (c *Client) ChooseProvider(ctx context.Context, n sandbox.Needs) (choice sandbox.Choice, err error) {
	return choice, c.conn.Call(ctx, http.MethodPost, "/v1/providers/choose", nil, n, &choice)
}
