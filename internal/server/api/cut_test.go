package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
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

// torn is a snapshot whose export fails in the middle, or at once.
type torn struct {
	Snapshots
	part string
}

func (s torn) ExportSnapshot(_ context.Context, _ string, w io.Writer) error {
	if s.part != "" {
		_, _ = io.WriteString(w, s.part)
	}
	return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the disk is torn"}
}

// A response whose body has begun ends without its end, and the log says why.
func TestResponsesAreCutShort(t *testing.T) {
	for part, logged := range map[string]bool{"": false, "a part": true} {
		var text bytes.Buffer
		s := httptest.NewServer(New(Services{Snapshots: torn{part: part}}, Options{Logger: slog.New(slog.NewTextHandler(&text, nil))}))
		resp, err := http.Get(s.URL + "/v1/snapshots/x/archive") //nolint:noctx // of this test
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		s.Close()
		if logged != errors.Is(err, io.ErrUnexpectedEOF) || logged != strings.Contains(text.String(), "the disk is torn") || logged != (string(got) == part) {
			t.Errorf("%q: %d %q %v, and the log says %q", part, resp.StatusCode, got, err, text.String())
		}
	}
}
