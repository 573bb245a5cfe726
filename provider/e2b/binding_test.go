package e2b_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/sandbox"
)

// accounts is a service with accounts. Each has a key and its own sandboxes.
type accounts map[string][]map[string]any

func (a accounts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sandboxes, ok := a[r.Header.Get("X-API-Key")]
	if !ok {
		refuse(w, http.StatusUnauthorized, "no such key")
		return
	}
	if r.URL.Path == "/v2/sandboxes" && r.Method == http.MethodGet {
		_ = json.NewEncoder(w).Encode(sandboxes)
		return
	}
	refuse(w, http.StatusNotFound, "no such sandbox")
}

// A key of another account, or another service, does not show that a sandbox is
// gone.
func TestOtherAccount(t *testing.T) {
	const mine, other = "e2b_1111111111111111", "e2b_2222222222222222"
	both := accounts{mine: {}, other: {}}
	first := httptest.NewServer(both)
	defer first.Close()
	second := httptest.NewServer(both)
	defer second.Close()
	dir := t.TempDir()
	open := func(key, url string) *e2b.Provider {
		p, err := e2b.New(at(dir, key, url))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	p := open(mine, first.URL)
	if err := e2b.Remember(t.Context(), p, "sb-mine", "box-1"); err != nil {
		t.Fatal(err)
	}
	binding, err := p.Binding(t.Context())
	if err != nil || !strings.HasPrefix(binding, first.URL+"#") || strings.Contains(binding, mine) {
		t.Errorf("the binding is %q, %v; want the address and a fingerprint", binding, err)
	}
	for name, q := range map[string]*e2b.Provider{"another key": open(other, first.URL), "another service": open(mine, second.URL)} {
		_, err := q.Attach(t.Context(), "sb-mine")
		if got := q.ErrorCode(err); got != sandbox.CodeUnauthorized {
			t.Errorf("%s: Attach has code %q, want %q: %v", name, got, sandbox.CodeUnauthorized, err)
		}
		if b, err := q.Binding(t.Context()); err != nil || b == binding {
			t.Errorf("%s: the binding is %q, %v; want another one", name, b, err)
		}
		if _, err := q.Create(t.Context(), spec("sb-mine")); q.ErrorCode(err) != sandbox.CodeUnauthorized {
			t.Errorf("%s: Create of the same ID: %v", name, err)
		}
	}
	// The account itself shows it.
	if _, err := p.Attach(t.Context(), "sb-mine"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("with its own key: %v, want gone", err)
	}
}
