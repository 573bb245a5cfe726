package atoll

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
)

// ListOptions select sandboxes. The zero value selects all that are not gone.
type ListOptions struct {
	States []sandbox.State
	Labels map[string]string
	Page   int // sandboxes per request; zero: the daemon's default
}

func (o *ListOptions) query() url.Values {
	query := url.Values{}
	for _, s := range o.States {
		query.Add("state", string(s))
	}
	for k, v := range o.Labels {
		query.Add("label", k+"="+v)
	}
	if o.Page > 0 {
		query.Set("limit", strconv.Itoa(o.Page))
	}
	return query
}

// List yields the sandboxes that match, newest first, and requests them page by
// page. It ends with the first error.
func (c *Client) List(ctx context.Context, options ...ListOptions) iter.Seq2[sandbox.Sandbox, error] {
	opts := optional(options)
	return func(yield func(sandbox.Sandbox, error) bool) {
		query := opts.query()
		for {
			var page struct {
				Sandboxes []sandbox.Sandbox
				Next      string
			}
			if err := c.conn.Call(ctx, http.MethodGet, "/v1/sandboxes", query, nil, &page); err != nil {
				yield(sandbox.Sandbox{}, err)
				return
			}
			for _, s := range page.Sandboxes {
				if !yield(s, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			query.Set("cursor", page.Next)
		}
	}
}
