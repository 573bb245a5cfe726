package admin

import (
	"context"
	"net/http"
	"net/url"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// Load returns the free capacity of the daemon.
func (c *Client) Load(ctx context.Context) (l operator.Load, err error) {
	return l, c.conn.Call(ctx, http.MethodGet, "/v1/load", nil, nil, &l)
}

// Nodes lists the daemons on which this one makes sandboxes, by name.
func (c *Client) Nodes(ctx context.Context) ([]operator.Node, error) {
	var out struct{ Nodes []operator.Node }
	return out.Nodes, c.conn.Call(ctx, http.MethodGet, "/v1/nodes", nil, nil, &out)
}

// Node asks a node for its load, and returns its state.
func (c *Client) Node(ctx context.Context, name string) (n operator.Node, err error) {
	return n, c.conn.Call(ctx, http.MethodGet, nodePath(name), nil, nil, &n)
}

func nodePath(name string) string { return "/v1/nodes/" + url.PathEscape(name) }

// UpdateNode changes a node.
func (c *Client) UpdateNode(ctx context.Context, name string, change operator.NodeChange) (n operator.Node, err error) {
	return n, c.conn.Call(ctx, http.MethodPatch, nodePath(name), nil, change, &n)
}

// DrainNode moves the sessions of a node to others. Sandboxes without a session
// are kept, unless force is set.
func (c *Client) DrainNode(ctx context.Context, name string, force bool) (d operator.NodeDrained, err error) {
	return d, c.conn.Call(ctx, http.MethodPost, nodePath(name)+"/drain", nil, operator.NodeDrain{Force: force}, &d)
}

// RemoveNode removes a node without sandboxes. With lost, it gives up a node that
// never comes back, with its sandboxes.
func (c *Client) RemoveNode(ctx context.Context, name string, lost bool) error {
	query := url.Values{}
	if lost {
		query.Set("lost", "true")
	}
	return c.conn.Call(ctx, http.MethodDelete, nodePath(name), query, nil, nil)
}
