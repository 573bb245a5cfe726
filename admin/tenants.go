package admin

import (
	"context"
	"net/http"
	"net/url"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// Tenant returns the caller's own tenant.
func (c *Client) Tenant(ctx context.Context) (t operator.Tenant, err error) {
	return t, c.conn.Call(ctx, http.MethodGet, "/v1/tenant", nil, nil, &t)
}

// Tenants lists all tenants by name. It is for the owner of the machine, like
// the following methods.
func (c *Client) Tenants(ctx context.Context) ([]operator.Tenant, error) {
	var out struct{ Tenants []operator.Tenant }
	return out.Tenants, c.conn.Call(ctx, http.MethodGet, "/v1/tenants", nil, nil, &out)
}

// TenantByID returns a tenant.
func (c *Client) TenantByID(ctx context.Context, id string) (t operator.Tenant, err error) {
	return t, c.conn.Call(ctx, http.MethodGet, "/v1/tenants/"+url.PathEscape(id), nil, nil, &t)
}

// CreateTenant makes a tenant.
func (c *Client) CreateTenant(ctx context.Context, id string, l operator.Limits) (t operator.Tenant, err error) {
	return t, c.conn.Call(ctx, http.MethodPost, "/v1/tenants", nil, map[string]any{"id": id, "limits": l}, &t)
}

// UpdateTenant changes a tenant. Existing sandboxes are not affected by new
// limits.
func (c *Client) UpdateTenant(ctx context.Context, id string, change operator.TenantChange) (t operator.Tenant, err error) {
	return t, c.conn.Call(ctx, http.MethodPatch, "/v1/tenants/"+url.PathEscape(id), nil, change, &t)
}
