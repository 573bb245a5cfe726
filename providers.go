package atoll

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
)

// Providers describes what can make sandboxes in the daemon.
func (c *Client) Providers(ctx context.Context) ([]sandbox.Provider, error) {
	var out struct{ Providers []sandbox.Provider }
	return out.Providers, c.conn.Call(ctx, http.MethodGet, "/v1/providers", nil, nil, &out)
}

// ChooseProvider asks which provider fits what a sandbox needs. It makes nothing.
func (c *Client) ChooseProvider(ctx context.Context, n sandbox.Needs) (choice sandbox.Choice, err error) {
	return choice, c.conn.Call(ctx, http.MethodPost, "/v1/providers/choose", nil, n, &choice)
}
