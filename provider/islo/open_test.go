package islo_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	service "github.com/atoll-run/atoll/internal/testing/servicetest/islo"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/islo"
	"github.com/atoll-run/atoll/sandbox"
)

// remembering is a service that issues tokens, creates nothing and records
// requests.
type remembering struct {
	hosts []string
	body  map[string]any
}

func (m *remembering) RoundTrip(r *http.Request) (*http.Response, error) {
	m.hosts = append(m.hosts, r.URL.Host)
	say := func(status int, text string) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
	}
	switch {
	case r.URL.Path == "/auth/token":
		return say(http.StatusOK, `{"session_token":"t"}`)
	case r.Method == http.MethodPost:
		m.body = nil
		if err := json.NewDecoder(r.Body).Decode(&m.body); err != nil {
			return nil, err
		}
		return say(http.StatusBadRequest, refused)
	case strings.HasPrefix(r.URL.Path, "/sandboxes/"):
		return say(http.StatusNotFound, notFound)
	}
	return say(http.StatusOK, `{"items":[],"total":0}`)
}

// Credentials only go to configured hosts.
func TestAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		control, compute string
		want             []string // hosts that get requests; nil: refused
	}{
		"the service's own":       {want: []string{"api.islo.dev", "ca.compute.islo.dev"}},
		"a region":                {compute: "https://eu.compute.example.com", want: []string{"api.islo.dev", "eu.compute.example.com"}},
		"private without compute": {control: "https://islo.example.com"},
		"private":                 {control: "https://c.example.com", compute: "https://d.example.com", want: []string{"c.example.com", "d.example.com"}},
		"no address":              {control: "ftp://x", compute: "https://x"},
		"a password":              {control: "https://u:secret@x", compute: "https://x"},
	} {
		asked := &remembering{}
		p, err := islo.New(islo.Options{
			Connection: hosted.Connection{Dir: t.TempDir(), Key: credential.New("ISLO_API_KEY", service.Key, "", ""), URL: tt.control, Transport: asked},
			ComputeURL: tt.compute,
		})
		if tt.want == nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v, want invalid", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := p.Probe(t.Context()); err != nil || !reflect.DeepEqual(asked.hosts, tt.want) {
			t.Errorf("%s: asked %v, want %v: %v", name, asked.hosts, tt.want, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAsked checks the requests for a sandbox, and what is refused.
func TestAsked(t *testing.T) {
	asked := &remembering{}
	p, err := islo.New(islo.Options{
		Connection: hosted.Connection{Dir: t.TempDir(), Key: credential.New("ISLO_API_KEY", service.Key, "", ""), URL: "http://127.0.0.1:1", Transport: asked},
		ComputeURL: "http://127.0.0.1:1", Image: "docker.io/library/python:3.12-slim",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := &sandbox.Spec{
		ID: "sb-asked", Image: "host", Env: map[string]string{"A": "secret value"}, Lifetime: sandbox.Lifetime{Timeout: 61 * time.Second},
		Resources: sandbox.Resources{CPUs: 2, Memory: 1<<30 + 1, Disk: 1},
	}
	if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeInvalid {
		t.Errorf("Create: %v", err)
	}
	name, _ := asked.body["name"].(string)
	if !strings.HasPrefix(name, "atoll-") || !strings.HasSuffix(name, "-sb-asked") || asked.body["request_id"] == "" {
		t.Errorf("asked for %v", asked.body)
	}
	delete(asked.body, "name")
	delete(asked.body, "request_id")
	want := map[string]any{
		"image": "docker.io/library/python:3.12-slim", "vcpus": 2.0, "memory_mb": 1025.0, "disk_gb": 1.0, "internet_enabled": false,
		"lifecycle": map[string]any{"auto_resume": "never", "delete_after": 120.0},
	}
	if !reflect.DeepEqual(asked.body, want) {
		t.Errorf("asked for %v, want %v", asked.body, want)
	}
	for what, change := range map[string]func(*sandbox.Spec){
		"mounts":     func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"image":      func(s *sandbox.Spec) { s.Image = "dir:/srv/image" },
		"processors": func(s *sandbox.Spec) { s.Resources.CPUs = 0.5 },
		"rules":      func(s *sandbox.Spec) { s.Network = sandbox.Network{Egress: []string{"a.test"}} },
	} {
		unusable := *s
		change(&unusable)
		if _, err := p.Create(t.Context(), &unusable); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", what, err)
		}
	}
}

// TestGateway checks what the gateway allows. A named profile is not changed.
func TestGateway(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	opts := w.options(dir)
	opts.Gateway = islo.Gateway{
		CloudRole: "6a1f", Integrations: []string{"github"},
		Rules: []islo.Rule{{
			Host: "api.github.test", Path: "/repos/*", Methods: []string{"GET"}, RateLimit: 60, Provider: "github",
			AuthStrategy:  &islo.AuthStrategy{Mode: "basic", Username: "x", Format: "{}"},
			ContentFilter: &islo.ContentFilter{Type: "judge", Direction: "request", Name: "polite", Provider: "anthropic", Model: "m", Prompt: "p", Fallback: "deny", Timeout: 5, MaxTokens: 10},
		}},
	}
	p, err := islo.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := bounded("sb-gateway")
	s.Network.Plain.Requests = append(s.Network.Plain.Requests,
		sandbox.EgressRequest{Rule: "small", Action: sandbox.Allow, Host: "*.b.test", PerMinute: 5, Filter: &sandbox.Filter{Type: sandbox.FilterSize, Direction: sandbox.DirRequest, Bytes: 100}})
	in, err := p.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	name := w.Names()[0]
	for _, tt := range []struct {
		method, host, path string
		want               bool
	}{
		{"GET", "api.a.test", "/v1/x", true},
		{"POST", "api.a.test", "/v1/x", false},
		{"GET", "api.a.test", "/v2", false},
		{"PUT", "x.b.test", "/", true},
		{"PUT", "b.test", "/", false},
		{"GET", "api.github.test", "/repos/x", true},
		{"GET", "elsewhere.test", "/", false},
	} {
		if got, by := w.Passes(name, tt.method, tt.host, tt.path); got != tt.want {
			t.Errorf("%s %s%s passes: %t, by %+v", tt.method, tt.host, tt.path, got, by)
		}
	}
	if err := in.Destroy(t.Context()); err != nil || len(w.Profiles()) != 0 {
		t.Errorf("Destroy: %v, %v are left", err, w.Profiles())
	}
	closed, err := p.Create(t.Context(), spec("sb-closed"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := w.Passes(w.Names()[0], "GET", "api.a.test", "/"); got || len(w.Profiles()) != 0 {
		t.Errorf("a sandbox without a network: passes %t, profiles %v", got, w.Profiles())
	}
	if err := closed.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	w.AddProfile("mine")
	opts.Profile, opts.Dir = "mine", t.TempDir()
	q, err := islo.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	named, err := q.Create(t.Context(), spec("sb-named"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := w.Passes(w.Names()[0], "GET", "elsewhere.test", "/"); !got {
		t.Error("the named profile is not used")
	}
	if err := named.Destroy(t.Context()); err != nil || !reflect.DeepEqual(w.Profiles(), []string{"mine"}) || w.Changes("mine") != 0 {
		t.Errorf("Destroy: %v; profiles %v, %d changes", err, w.Profiles(), w.Changes("mine"))
	}
}

// A key of another account does not show that a sandbox is gone. A key that is
// replaced in its file is used from then on.
func TestKeys(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	w.AddKey("ak_other", "tenant-2")
	p := w.Open(t, dir)
	in := w.make(t, p, spec("sb-mine"))
	opts := w.options(dir)
	opts.Key = credential.New("ISLO_API_KEY", "ak_other", "", "")
	q, err := islo.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Attach(t.Context(), in.ID()); q.ErrorCode(err) != sandbox.CodeUnauthorized {
		t.Errorf("Attach: %v, want unauthorized", err)
	}
	mine, err1 := p.Binding(t.Context())
	theirs, err2 := q.Binding(t.Context())
	if err1 != nil || err2 != nil || mine == theirs || strings.Contains(mine, service.Key) || !strings.HasPrefix(mine, w.url+"#") {
		t.Errorf("bindings %q and %q, %v, %v", mine, theirs, err1, err2)
	}

	file := filepath.Join(t.TempDir(), "key")
	write := func(key string) {
		if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.AddKey("ak_first", "tenant-3")
	write("ak_first")
	opts = w.options(t.TempDir())
	opts.Key = credential.New("ISLO_API_KEY", "", file, "")
	r, err := islo.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	renewed, err := r.Create(t.Context(), spec("sb-renewed"))
	if err != nil {
		t.Fatal(err)
	}
	w.AddKey("ak_second", "tenant-3")
	w.RevokeKey("ak_first")
	write("ak_second")
	if got := hostedtest.Says(t, renewed, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
	if err := renewed.Destroy(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	// Tokens that expire at once are replaced in time.
	w.Tokens(2 * time.Second)
	w.Expire()
	for range 3 {
		if _, err := p.State(t.Context(), in.ID()); err != nil {
			t.Error(err)
		}
	}
}
