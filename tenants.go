package atoll

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/atoll-run/atoll/sandbox"
)

// TenantChange says what is to change of a tenant; what is nil stays.
type TenantChange struct {
	Limits   map[string]float64 // by the JSON names of Limits; zero lifts a limit
	Disabled *bool
}

// Tenant returns the caller's own tenant.
func (c *Client) Tenant(ctx context.Context) (t sandbox.Tenant, err error) {
	return t, c.call(ctx, http.MethodGet, "/v1/tenant", nil, nil, &t)
}

// Tenants lists all tenants by name. It is for the owner of the machine, as
// all below.
func (c *Client) Tenants(ctx context.Context) ([]sandbox.Tenant, error) {
	var out struct{ Tenants []sandbox.Tenant }
	return out.Tenants, c.call(ctx, http.MethodGet, "/v1/tenants", nil, nil, &out)
}

// TenantByID returns a tenant.
func (c *Client) TenantByID(ctx context.Context, id string) (t sandbox.Tenant, err error) {
	return t, c.call(ctx, http.MethodGet, "/v1/tenants/"+url.PathEscape(id), nil, nil, &t)
}

// CreateTenant makes a tenant.
func (c *Client) CreateTenant(ctx context.Context, id string, l sandbox.Limits) (t sandbox.Tenant, err error) {
	return t, c.call(ctx, http.MethodPost, "/v1/tenants", nil, map[string]any{"id": id, "limits": l}, &t)
}

// UpdateTenant changes a tenant. What it uses already is left alone.
func (c *Client) UpdateTenant(ctx context.Context, id string, change TenantChange) (t sandbox.Tenant, err error) {
	in := map[string]any{}
	if len(change.Limits) > 0 {
		in["limits"] = change.Limits
	}
	if change.Disabled != nil {
		in["disabled"] = *change.Disabled
	}
	return t, c.call(ctx, http.MethodPatch, "/v1/tenants/"+url.PathEscape(id), nil, in, &t)
}

// Backup returns a consistent copy of the daemon's database as a stream, which
// the caller closes. An error while reading means that it is not whole.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	r, err := c.request(ctx, http.MethodGet, "/v1/state/backup", nil, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.do(r)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
