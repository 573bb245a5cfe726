// Package admin administers a daemon: keys, tenants, policies, the audit log,
// backups and diagnosis.
//
// atoll.Client.Admin returns its [Client]. Most of it is for the owner of the
// machine, on the daemon's socket: others get CodeDenied. Errors are of type
// *sandbox.Error.
package admin

import (
	"context"
	"io"
	"net/http"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Client administers a daemon. Its methods may be called concurrently. It needs
// no closing; closing the atoll.Client that it came from closes its connections.
type Client struct{ conn *client.Conn }

// New returns a Client that uses a connection. Programs call atoll.Client.Admin
// instead.
func New(conn *client.Conn) *Client { return &Client{conn} }

// ImageUses lists the images that stopped sandboxes, snapshots and templates
// need. It is for the owner of the machine.
func (c *Client) ImageUses(ctx context.Context) ([]operator.ImageUse, error) {
	var out struct{ Uses []operator.ImageUse }
	return out.Uses, c.conn.Call(ctx, http.MethodGet, "/v1/images/uses", nil, nil, &out)
}

// Diagnose checks the health of the daemon. It is for the owner of the machine.
func (c *Client) Diagnose(ctx context.Context) (d operator.Diagnosis, err error) {
	return d, c.conn.Call(ctx, http.MethodGet, "/v1/doctor", nil, nil, &d)
}

// EgressSettings returns fingerprints of the daemon's egress settings, by the
// names of their environment variables, such as ATOLL_EGRESS_ALLOW. Empty
// settings are left out. It is for the owner of the machine.
func (c *Client) EgressSettings(ctx context.Context) (map[string]string, error) {
	var out struct{ Fingerprints map[string]string }
	err := c.conn.Call(ctx, http.MethodGet, "/v1/egress-settings", nil, nil, &out)
	return out.Fingerprints, err
}

// EnableE2B makes the daemon serve the E2B API, now and after later starts
// without other E2B flags. It is for the owner of the machine. If the API is
// already served with other settings, the error is CodeConflict.
func (c *Client) EnableE2B(ctx context.Context, s operator.E2BSettings) (p operator.E2BPlace, err error) {
	return p, c.conn.Call(ctx, http.MethodPut, "/v1/e2b", nil, s, &p)
}

// DisableE2B makes the daemon stop serving the E2B API, until it is started
// with the flag for it. Requests that do not end soon are canceled. It is for
// the owner of the machine.
func (c *Client) DisableE2B(ctx context.Context) error {
	return c.conn.Call(ctx, http.MethodDelete, "/v1/e2b", nil, nil, nil)
}

// OpenConsole makes the daemon serve the web console, now and after later
// starts, and returns a link that signs in once. It is for the owner of the
// machine.
func (c *Client) OpenConsole(ctx context.Context, s operator.ConsoleSettings) (l operator.ConsoleLink, err error) {
	return l, c.conn.Call(ctx, http.MethodPut, "/v1/console", nil, s, &l)
}

// Backup returns a consistent copy of the daemon's database as a stream, which
// the caller closes. If reading returns an error, the copy is not complete.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	r, err := c.conn.Request(ctx, http.MethodGet, "/v1/state/backup", nil, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.conn.Do(r)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
