package atoll

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
)

// CreateProfile stores a profile under its name.
func (c *Client) CreateProfile(ctx context.Context, p sandbox.Profile) (out sandbox.StoredProfile, err error) {
	return out, c.conn.Call(ctx, http.MethodPost, "/v1/profiles", nil, p, &out)
}

// ApplyProfile stores a new version of the profile of that name, or its first,
// and applies it to the sandboxes that use it. If ifVersion is not 0 and the
// stored profile has another version, it is CodeConflict.
func (c *Client) ApplyProfile(ctx context.Context, p sandbox.Profile, ifVersion int64) (out sandbox.StoredProfile, err error) {
	query := url.Values{}
	if ifVersion != 0 {
		query.Set("ifVersion", strconv.FormatInt(ifVersion, 10))
	}
	return out, c.profile(ctx, http.MethodPut, p.Name, "", query, p, &out)
}

// Profile returns the given version of a profile. Version 0 is the newest.
func (c *Client) Profile(ctx context.Context, name string, version int64) (out sandbox.StoredProfile, err error) {
	query := url.Values{}
	if version != 0 {
		query.Set("version", strconv.FormatInt(version, 10))
	}
	return out, c.profile(ctx, http.MethodGet, name, "", query, nil, &out)
}

// Profiles lists the stored profiles by name.
func (c *Client) Profiles(ctx context.Context) ([]sandbox.StoredProfile, error) {
	var out struct{ Profiles []sandbox.StoredProfile }
	return out.Profiles, c.conn.Call(ctx, http.MethodGet, "/v1/profiles", nil, nil, &out)
}

// RemoveProfile removes a profile. A profile that a sandbox uses is
// CodeConflict.
func (c *Client) RemoveProfile(ctx context.Context, name string) error {
	return c.profile(ctx, http.MethodDelete, name, "", nil, nil, nil)
}

// profile makes a request about a profile. It checks the name, because an
// invalid one could address another resource.
func (c *Client) profile(ctx context.Context, method, name, rest string, query url.Values, in, out any) error {
	if err := sandbox.ValidateName(name); err != nil {
		return err
	}
	return c.conn.Call(ctx, method, "/v1/profiles/"+name+rest, query, in, out)
}

// TestProfile tells whether a stored profile would allow a request, and why. It
// sends no request to the target. target is a URL; the scheme tcp stands for a
// bare TCP connection.
func (c *Client) TestProfile(ctx context.Context, name, method, target string) (out sandbox.Explanation, err error) {
	in := map[string]string{"method": method, "url": target}
	return out, c.profile(ctx, http.MethodPost, name, "/test", nil, in, &out)
}

// CreateSecret stores a secret.
func (c *Client) CreateSecret(ctx context.Context, s sandbox.NewSecret) (out sandbox.StoredSecret, err error) {
	return out, c.conn.Call(ctx, http.MethodPost, "/v1/secrets", nil, s, &out)
}

// RotateSecret gives a secret a new value, which is used from the next request
// on. A secret that has a Source is read from it again; value must then be
// empty.
func (c *Client) RotateSecret(ctx context.Context, name string, value []byte) (out sandbox.StoredSecret, err error) {
	if err := sandbox.ValidateSecretName(name); err != nil {
		return out, err
	}
	return out, c.conn.Call(ctx, http.MethodPut, "/v1/secrets/"+name+"/value", nil, sandbox.SecretValue{Value: value}, &out)
}

// Secrets lists the secrets by name, without their values.
func (c *Client) Secrets(ctx context.Context) ([]sandbox.StoredSecret, error) {
	var out struct{ Secrets []sandbox.StoredSecret }
	return out.Secrets, c.conn.Call(ctx, http.MethodGet, "/v1/secrets", nil, nil, &out)
}

// RemoveSecret removes a secret. A secret that a sandbox or a profile uses is
// CodeConflict, unless force is set; they then continue without it.
func (c *Client) RemoveSecret(ctx context.Context, name string, force bool) error {
	if err := sandbox.ValidateSecretName(name); err != nil {
		return err
	}
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	return c.conn.Call(ctx, http.MethodDelete, "/v1/secrets/"+name, query, nil, nil)
}
