package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// forks counts what a request asks for.
type forks struct {
	Sandboxes
	count int
}

func (f *forks) Fork(_ context.Context, _ string, req durable.ForkRequest) ([]sandbox.Sandbox, error) {
	f.count = req.Count
	return nil, nil
}

// A body means one thing: what was validated is what is decoded.
func TestBodiesMeanOneThing(t *testing.T) {
	for _, c := range []struct {
		body   string
		status int
		fault  string
	}{
		{`{"count":2}`, http.StatusCreated, ""},
		{`{"count":1,"labels":{"a":"1","A":"2"}}`, http.StatusCreated, ""},
		{`{"count":101}`, http.StatusBadRequest, "<= 100"},
		{`{"count":1,"Count":102}`, http.StatusBadRequest, "body.Count"},
		{`{"Count":2}`, http.StatusBadRequest, "body.Count"},
		{`{"count":104,"count":1}`, http.StatusBadRequest, errTwice.Error()},
		{`{"count":1,"count":1}`, http.StatusBadRequest, errTwice.Error()},
		{`{"count":1,"labels":{"a":"1","a":"2"}}`, http.StatusBadRequest, errTwice.Error()},
		{`{"count":1,"co\u0075nt":2}`, http.StatusBadRequest, errTwice.Error()},
		{`{"count":1`, http.StatusBadRequest, "body"},
	} {
		f := &forks{}
		r := httptest.NewRequest(http.MethodPost, "/v1/sandboxes/box/fork", strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		New(Services{Sandboxes: f}, Options{}).ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.fault) {
			t.Errorf("%s is answered with %d %s, want %d and %q", c.body, w.Code, w.Body, c.status, c.fault)
		}
		if c.status != http.StatusCreated && f.count != 0 {
			t.Errorf("%s is refused, and yet asked for %d", c.body, f.count)
		}
	}
}

func TestOnce(t *testing.T) {
	for body, ok := range map[string]bool{
		`1`: true, `[]`: true, `{}`: true, `["a","a"]`: true, `{"a":"a","b":"a"}`: true, `{"a":{"a":[{"a":1},{"a":2}]},"b":[1,2]}`: true,
		`{"a":[],"a":1}`: false, `[{"a":{}},{"a":{"b":1,"c":[],"b":2}}]`: false, `{"":1,"":2}`: false, `{"a":1e999,"b":[[{"c":{},"c":{}}]]}`: false,
	} {
		if err := once([]byte(body)); (err == nil) != ok {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// Faults of a body come in the same order each time.
func TestFaultsHaveAnOrder(t *testing.T) {
	for range 20 {
		r := httptest.NewRequest(http.MethodPost, "/v1/sandboxes/box/fork", strings.NewReader(`{"d":1,"c":1,"b":1,"a":1}`))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		New(Services{}, Options{}).ServeHTTP(w, r)
		body, last := w.Body.String(), -1
		for _, name := range []string{"body.a", "body.b", "body.c", "body.d"} {
			at := strings.Index(body, name)
			if at <= last {
				t.Fatal("faults are not sorted: ", body)
			}
			last = at
		}
	}
}
