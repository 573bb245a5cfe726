package client_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

// The client sends a request again when a busy machine refuses it with
// Retry-After. Other errors, and too long a wait, are returned to the caller.
func TestBusyMachine(t *testing.T) {
	for _, tc := range []struct {
		name, subject, after string
		refusals, want       int
	}{
		{"busy", "machine", "1", 1, 2},
		{"a quota", "boxes", "1", 1, 1},
		{"it asks for too much", "machine", "60", 1, 1},
		{"it does not say when", "machine", "", 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n++
				if text, _ := io.ReadAll(r.Body); string(text) != `{"a":1}` {
					t.Errorf("request %d has the body %q", n, text)
				}
				if n <= tc.refusals {
					if tc.after != "" {
						w.Header().Set("Retry-After", tc.after)
					}
					w.WriteHeader(http.StatusTooManyRequests)
					_, _ = io.WriteString(w, `{"code":"exhausted","subject":"`+tc.subject+`"}`)
				}
			}))
			defer s.Close()
			c := client.Conn{HTTP: s.Client(), Base: s.URL, Propagate: func(context.Context, http.Header) {}}
			r, err := c.Request(t.Context(), http.MethodPost, "/", nil, strings.NewReader(`{"a":1}`))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.Do(r)
			if n != tc.want {
				t.Errorf("%d requests, want %d", n, tc.want)
			}
			if (err == nil) != (tc.want > tc.refusals) || err != nil && sandbox.CodeOf(err) != sandbox.CodeExhausted {
				t.Errorf("the answer is %v", err)
			}
			if err == nil {
				_ = resp.Body.Close()
			}
		})
	}
}
