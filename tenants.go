package atoll

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Limits are what one tenant may use. A field that is zero sets no limit.
type Limits struct {
	Boxes         int64   `json:"boxes,omitempty"`         // sandboxes that are not gone
	CPUs          float64 `json:"cpus,omitempty"`          // processors' worth of time of the sandboxes that may run
	Memory        int64   `json:"memory,omitempty"`        // bytes of memory of the sandboxes that may run
	Disk          int64   `json:"disk,omitempty"`          // bytes of the writable layers of all that are not gone
	Snapshots     int64   `json:"snapshots,omitempty"`     // those with a name
	SnapshotBytes int64   `json:"snapshotBytes,omitempty"` // of all snapshots, those of sandboxes that rest included

	ExecRate    float64 `json:"execRate,omitempty"`    // commands started per second
	ExecBurst   int     `json:"execBurst,omitempty"`   // commands that may start at once; zero: one second's worth
	OutputRate  int64   `json:"outputRate,omitempty"`  // bytes of command output per second; what is over is slowed down
	OutputBurst int64   `json:"outputBurst,omitempty"` // bytes at once; zero: one second's worth
}

// Usage is what a tenant uses.
type Usage struct {
	Boxes  int64   `json:"boxes"`
	CPUs   float64 `json:"cpus"`
	Memory int64   `json:"memory"` // bytes
	Disk   int64   `json:"disk"`   // bytes

	Snapshots     int64 `json:"snapshots"`     // those with a name
	SnapshotBytes int64 `json:"snapshotBytes"` // of all snapshots
}

// Tenant is one customer of the daemon. Nothing of one reaches another.
type Tenant struct {
	ID       string    `json:"id"`
	Created  time.Time `json:"created"`
	Disabled time.Time `json:"disabled,omitzero"` // since when its keys are refused; zero: they are not
	Limits   Limits    `json:"limits"`
	Usage    Usage     `json:"usage"`
}

// TenantChange says what is to change of a tenant; what is nil stays.
type TenantChange struct {
	Limits   map[string]float64 // by the JSON names of Limits; zero lifts a limit
	Disabled *bool
}

// Tenant returns the caller's own tenant.
func (c *Client) Tenant(ctx context.Context) (t Tenant, err error) {
	return t, c.call(ctx, http.MethodGet, "/v1/tenant", nil, nil, &t)
}

// Tenants lists all tenants by name. It is for the owner of the machine, as
// all below.
func (c *Client) Tenants(ctx context.Context) ([]Tenant, error) {
	var out struct{ Tenants []Tenant }
	return out.Tenants, c.call(ctx, http.MethodGet, "/v1/tenants", nil, nil, &out)
}

// TenantByID returns a tenant.
func (c *Client) TenantByID(ctx context.Context, id string) (t Tenant, err error) {
	return t, c.call(ctx, http.MethodGet, "/v1/tenants/"+url.PathEscape(id), nil, nil, &t)
}

// CreateTenant makes a tenant.
func (c *Client) CreateTenant(ctx context.Context, id string, l Limits) (t Tenant, err error) {
	return t, c.call(ctx, http.MethodPost, "/v1/tenants", nil, map[string]any{"id": id, "limits": l}, &t)
}

// UpdateTenant changes a tenant. What it uses already is left alone.
func (c *Client) UpdateTenant(ctx context.Context, id string, change TenantChange) (t Tenant, err error) {
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
