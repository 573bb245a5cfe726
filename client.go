package atoll

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// CreateOptions are options of [Client.Create]. The zero value is usable.
type CreateOptions struct {
	Pull     string // when to fetch the image: missing (as if empty), always or never
	Platform string // of the image, "os/arch[/variant]"; empty: the daemon's own
	// IdempotencyKey makes a repeated call return the sandbox that the first call
	// made. Use a new random key for every sandbox. If it is empty and ctx ends,
	// Create removes the sandbox.
	IdempotencyKey string
}

// Create makes a sandbox, which lives until it is destroyed or its lifetime
// ends. If ctx ends before the daemon answers, Create removes the sandbox that
// the daemon may have made, which takes at most 30 seconds. With an idempotency
// key, Create leaves the sandbox, and the caller can repeat the call. The
// options may be left out.
func (c *Client) Create(ctx context.Context, spec sandbox.Spec, options ...CreateOptions) (*Sandbox, error) {
	opts := optional(options)
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := utf8Map("env", spec.Env); err != nil {
		return nil, err
	}
	text, err := createBody(spec, opts)
	if err != nil {
		return nil, err
	}
	if opts.IdempotencyKey != "" {
		return c.create(ctx, text, opts.IdempotencyKey)
	}
	key := rand.Text()
	s, err := c.create(ctx, text, key)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, c.uncreate(ctx, text, key))
	}
	return s, err
}

// createBody returns the body of a request for a sandbox.
func createBody(spec sandbox.Spec, opts CreateOptions) ([]byte, error) {
	text, err := json.Marshal(struct {
		sandbox.Spec
		Pull     string `json:"pull,omitempty"`
		Platform string `json:"platform,omitempty"`
	}{spec, opts.Pull, opts.Platform})
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "sandbox.create", Message: "cannot be sent", Cause: err}
	}
	return text, nil
}

// create sends a request for a sandbox.
func (c *Client) create(ctx context.Context, text []byte, key string) (*Sandbox, error) {
	s := &Sandbox{client: c}
	return s, c.once(ctx, "/v1/sandboxes", text, key, &s.info)
}

// once sends a request with an idempotency key: repeating it with the same key
// has no further effect.
func (c *Client) once(ctx context.Context, path string, text []byte, key string, out any) error {
	r, err := c.conn.Request(ctx, http.MethodPost, path, nil, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return c.conn.Receive(r, out)
}

// teardown bounds the removal of a sandbox that the caller of Create no longer
// waits for.
const teardown = 30 * time.Second

// uncreate removes the sandbox that a request may have made whose context
// ended. It repeats the request with the same key to learn which sandbox that
// is.
func (c *Client) uncreate(ctx context.Context, text []byte, key string) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	s, err := c.create(late, text, key)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeGone:
		return nil
	case err != nil:
		return err
	}
	return s.Destroy(late)
}

// Get returns the sandbox of that name or id, whatever its state.
func (c *Client) Get(ctx context.Context, ref string) (*Sandbox, error) {
	s := &Sandbox{client: c}
	if err := sandbox.ValidateName(ref); err != nil {
		return nil, err
	}
	return s, c.conn.Call(ctx, http.MethodGet, "/v1/sandboxes/"+ref, nil, nil, &s.info)
}

// Remove destroys the sandbox of that name or id. A sandbox that is already
// gone is success. One that never existed is CodeNotFound.
func (c *Client) Remove(ctx context.Context, ref string) error {
	if err := sandbox.ValidateName(ref); err != nil {
		return err
	}
	return c.conn.Call(ctx, http.MethodDelete, "/v1/sandboxes/"+ref, nil, nil, nil)
}
