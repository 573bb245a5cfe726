package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// A canceled request never gets a success status, which net/http sends for an
// empty response: its caller could take that for an empty file.
func TestCutOffRequestsAreAnswered(t *testing.T) {
	a := New(Services{}, Options{})
	for _, tt := range []struct {
		name   string
		cause  error
		status int
		code   sandbox.Code
	}{
		{"the key has ended", &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "the key is not valid"}, 401, sandbox.CodeUnauthorized},
		{"the daemon ends", &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "shutting down"}, 503, sandbox.CodeUnavailable},
		{"the caller has gone", nil, 499, sandbox.CodeCanceled},
		{"something else", errors.New("net: closed"), 499, sandbox.CodeCanceled},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(tt.cause)
		w := httptest.NewRecorder()
		a.fail(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/sandboxes/x/files", nil), ctx.Err())
		var p Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != tt.status || p.Code != tt.code {
			t.Errorf("%s: %d %s %v", tt.name, w.Code, w.Body, err)
		}
	}
}
