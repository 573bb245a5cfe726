package admin

import (
	"context"
	"net/http"
	"net/url"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// CreateKey makes an API key. Its Token is only in this result.
func (c *Client) CreateKey(ctx context.Context, n operator.NewKey) (k operator.Key, err error) {
	return k, c.conn.Call(ctx, http.MethodPost, "/v1/keys", nil, n, &k)
}

// Keys lists the API keys, including revoked and expired ones, oldest first.
func (c *Client) Keys(ctx context.Context) ([]operator.Key, error) {
	var out struct{ Keys []operator.Key }
	return out.Keys, c.conn.Call(ctx, http.MethodGet, "/v1/keys", nil, nil, &out)
}

// RevokeKey revokes an API key.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.conn.Call(ctx, http.MethodDelete, "/v1/keys/"+url.PathEscape(id), nil, nil, nil)
}
