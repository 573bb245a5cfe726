package atoll

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
)

// ImageUses lists the images of what does not run. It is for the owner of the
// machine.
func (c *Client) ImageUses(ctx context.Context) ([]sandbox.ImageUse, error) {
	var out struct{ Uses []sandbox.ImageUse }
	return out.Uses, c.call(ctx, http.MethodGet, "/v1/images/uses", nil, nil, &out)
}

// Providers describes what can make sandboxes in the daemon.
func (c *Client) Providers(ctx context.Context) ([]sandbox.Provider, error) {
	var out struct{ Providers []sandbox.Provider }
	return out.Providers, c.call(ctx, http.MethodGet, "/v1/providers", nil, nil, &out)
}

// ChooseProvider asks which provider fits what a sandbox needs. It makes nothing.
func (c *Client) ChooseProvider(ctx context.Context, n sandbox.Needs) (choice sandbox.Choice, err error) {
	return choice, c.call(ctx, http.MethodPost, "/v1/providers/choose", nil, n, &choice)
}

// Diagnose asks the daemon how it is. It is for the owner of the machine.
func (c *Client) Diagnose(ctx context.Context) (d sandbox.Diagnosis, err error) {
	return d, c.call(ctx, http.MethodGet, "/v1/doctor", nil, nil, &d)
}
