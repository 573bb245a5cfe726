package e2bapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// changing is a sandbox that is being paused: its record still says that it
// runs when a request arrives.
type changing struct {
	Sandboxes
	Lifecycle
	Entrance
	state   sandbox.State
	opened  error // what Open returns
	expired int
}

func (c *changing) record() sandbox.Sandbox { return sandbox.Sandbox{ID: "sb-one", State: c.state} }

func (c *changing) Enter(ctx context.Context, _ sandbox.ID, _ string) (context.Context, sandbox.Sandbox, error) {
	return ctx, c.record(), nil
}

func (c *changing) Inspect(context.Context, string) (sandbox.Detail, error) {
	return sandbox.Detail{Sandbox: c.record()}, nil
}

func (c *changing) Expire(context.Context, string, time.Time, bool) (sandbox.Sandbox, error) {
	c.expired++
	if c.expired == 1 { // the pause begins
		c.state = sandbox.Pausing
		return sandbox.Sandbox{}, &sandbox.Error{Code: sandbox.CodeConflict, Message: "the sandbox is pausing"}
	}
	return c.record(), nil
}

func (c *changing) Resume(context.Context, string) (sandbox.Sandbox, error) {
	c.state = sandbox.Running
	return c.record(), nil
}

func (c *changing) handler(t *testing.T) *Handler {
	h := New(Services{
		Authenticate: func(ctx context.Context, _ string) (context.Context, string, error) { return ctx, "", nil },
		Open:         func(context.Context, string) (Sandbox, error) { return nil, c.opened },
		Sandboxes:    c, Lifecycle: c, Entrance: c, Rights: anything{},
	}, Options{Secret: make([]byte, 32), Uploads: t.TempDir()})
	t.Cleanup(func() { h.Close() })
	return h
}

// A client connects to a sandbox that is paused after its record was read.
func TestConnectDuringPause(t *testing.T) {
	c := &changing{state: sandbox.Running}
	w := httptest.NewRecorder()
	c.handler(t).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/sandboxes/sbone/connect", strings.NewReader(`{"timeout":60}`)))
	if w.Code != http.StatusCreated || c.state != sandbox.Running || c.expired != 2 {
		t.Errorf("%d %s; it is %s", w.Code, w.Body, c.state)
	}
}

// A sandbox ends after a request has read its record. The SDKs take a 404 for a
// missing file.
func TestEndOfSandboxIsNotAMissingFile(t *testing.T) {
	for _, code := range []sandbox.Code{sandbox.CodeGone, sandbox.CodeNotFound, sandbox.CodeConflict} {
		c := &changing{state: sandbox.Running, opened: &sandbox.Error{Code: code, Message: "no"}}
		h := c.handler(t)
		for _, request := range []struct {
			method, path, body string
			want               int
		}{
			{http.MethodGet, "/files?path=/f", "", http.StatusBadGateway},
			{http.MethodPost, "/files?path=/f", "", http.StatusBadGateway},
			{http.MethodGet, "/envs", "", http.StatusBadGateway},
			{http.MethodPost, "/filesystem.Filesystem/Stat", "{}", http.StatusServiceUnavailable},
		} {
			r := httptest.NewRequest(request.method, request.path, strings.NewReader(request.body))
			r.Host = "localhost"
			r.Header.Set("E2b-Sandbox-Id", "sbone")
			r.Header.Set("E2b-Sandbox-Port", "49983")
			r.Header.Set(headerToken, h.tokens.envd("sb-one", "key"))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if body, _ := io.ReadAll(w.Body); w.Code != request.want {
				t.Errorf("%s: %s %s: %d %s, want %d", code, request.method, request.path, w.Code, body, request.want)
			}
		}
	}
}
