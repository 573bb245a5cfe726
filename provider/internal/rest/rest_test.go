package rest_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

const key = "key-0123456789"

// Requests are repeated where that can do no harm, and errors tell no key.
func TestCall(t *testing.T) {
	for name, tt := range map[string]struct {
		method string
		answer []string // bodies of successive answers, "STATUS BODY"
		want   sandbox.Code
		asked  int
	}{
		"good":                 {"GET", []string{"200 {}"}, "", 1},
		"after a failure":      {"GET", []string{"502 <html>", "200 {}"}, "", 2},
		"removal":              {"DELETE", []string{"503 <html>", "200 {}"}, "", 2},
		"not again":            {"POST", []string{"503 <html>", "200 {}"}, sandbox.CodeUnavailable, 1},
		"too many":             {"POST", []string{"429 {}", "200 {}"}, "", 2},
		"failing for good":     {"GET", []string{"500 x", "500 x", "500 x", "200 {}"}, sandbox.CodeUnavailable, 3},
		"missing":              {"GET", []string{`404 ours`}, sandbox.CodeNotFound, 1},
		"missing on the way":   {"POST", []string{`404 <html>`}, sandbox.CodeUnavailable, 1},
		"redirection":          {"POST", []string{"302 "}, sandbox.CodeUnavailable, 1},
		"no answer to read":    {"POST", []string{"200 <html>"}, sandbox.CodeUnavailable, 1},
		"the key is not taken": {"POST", []string{"401 ours"}, sandbox.CodeUnauthorized, 1},
	} {
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			status, body, _ := strings.Cut(tt.answer[min(asked, len(tt.answer)-1)], " ")
			asked++
			w.Header().Set("Retry-After", "1")
			w.Header().Set("Location", "http://127.0.0.1:1/")
			code, _ := strconv.Atoi(status)
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		base, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		c := rest.Client{
			HTTP: rest.NewHTTP(nil), Base: base, Sign: func(h http.Header) { h.Set("Key", key) }, Secrets: []string{key},
			Words: func(body []byte) (string, string, bool) { return "code", "refused " + key, string(body) == "ours" },
		}
		err = c.Call(t.Context(), tt.method, "/x", nil, &struct{}{})
		if got := sandbox.CodeOf(err); got != tt.want || asked != tt.asked {
			t.Errorf("%s: code %q, want %q, asked %d times, want %d: %v", name, got, tt.want, asked, tt.asked, err)
		}
		for ; err != nil; err = errors.Unwrap(err) {
			if strings.Contains(err.Error(), key) {
				t.Errorf("%s: the error tells the key: %v", name, err)
			}
		}
		c.HTTP.CloseIdleConnections()
		server.Close()
	}
}
