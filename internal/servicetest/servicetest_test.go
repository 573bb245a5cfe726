package servicetest_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/fake"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestFaults checks of each fault whether the service acted, and what arrived.
func TestFaults(t *testing.T) {
	var acted atomic.Int32
	var faults servicetest.Faults
	server := httptest.NewServer(faults.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		acted.Add(1)
		_, _ = io.WriteString(w, "hello "+r.URL.Path)
	})))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(ctx context.Context) (int, string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/a/b", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return res.StatusCode, string(body), err
	}
	const whole = "hello /a/b"
	for name, tt := range map[string]struct {
		fault  servicetest.Fault
		status int
		body   string
		fails  bool
		acts   int32
	}{
		"none":         {servicetest.Fault{Path: "/other"}, 200, whole, false, 1},
		"method":       {servicetest.Fault{Method: "POST", Status: 500}, 200, whole, false, 1},
		"refused":      {servicetest.Fault{Path: "/a/*", Status: 503, Body: "busy"}, 503, "busy", false, 0},
		"acted":        {servicetest.Fault{Status: 502, Act: true}, 502, "", false, 1},
		"lost":         {servicetest.Fault{Lose: true}, 0, "", true, 1},
		"truncated":    {servicetest.Fault{Truncate: 5}, 200, "hello", true, 1},
		"rewritten":    {servicetest.Fault{Rewrite: bytes.ToUpper}, 200, "HELLO /A/B", false, 1},
		"slow":         {servicetest.Fault{Delay: time.Millisecond}, 200, whole, false, 1},
		"second":       {servicetest.Fault{Skip: 1, Status: 500}, 200, whole, false, 1},
		"too many now": {servicetest.TooMany("GET", "", time.Second, 1), 429, `{"error":{"code":"rate_limited","message":"too many requests"}}`, false, 0},
	} {
		faults.Clear()
		faults.Add(tt.fault)
		before := acted.Load()
		status, body, err := get(t.Context())
		if status != tt.status || body != tt.body || (err != nil) != tt.fails || acted.Load()-before != tt.acts {
			t.Errorf("%s: %d, %q, %v; the service acted %d times", name, status, body, err, acted.Load()-before)
		}
	}
	if n := faults.Requests("GET", "/a/*"); n != 1 {
		t.Errorf("%d requests counted, want 1", n)
	}
	faults.Clear()
	faults.Add(servicetest.Fault{Times: 1, Status: 500}, servicetest.Fault{Skip: 1, Delay: time.Hour})
	if status, _, err := get(t.Context()); status != 500 || err != nil {
		t.Errorf("the first: %d, %v", status, err)
	}
	if status, _, err := get(t.Context()); status != 200 || err != nil {
		t.Errorf("the second: %d, %v", status, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if status, _, err := get(ctx); err == nil {
		t.Errorf("the third is not slow: %d", status)
	}
}

// TestIntercept has a client reach a fake at a name that is not its own.
func TestIntercept(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) })
	p, err := servicetest.Intercept(t.TempDir(), handler, "api.example.com", "*.api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	proxy, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(p.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	for host, works := range map[string]bool{"api.example.com": true, "box-1.api.example.com": true, "other.example.com": false} {
		res, err := client.Get("https://" + host + "/")
		if (err == nil) != works {
			t.Errorf("%s: %v", host, err)
		}
		if err == nil {
			if body, _ := io.ReadAll(res.Body); string(body) != host {
				t.Errorf("%s: the fake was asked for %s", host, body)
			}
			res.Body.Close()
		}
	}
}

// TestRun runs commands in a sandbox in memory.
func TestRun(t *testing.T) {
	p := fake.New(fake.Options{})
	defer p.Close()
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "one", Image: "host"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := servicetest.Run(t.Context(), in, sandbox.Command{Shell: "echo 123456; echo no >&2; exit 3"}, 4)
	if err != nil || string(out.Stdout) != "1234" || string(out.Stderr) != "no\n" || !out.Truncated || out.Exit.Code != 3 {
		t.Errorf("%+v, %v", out, err)
	}
}
