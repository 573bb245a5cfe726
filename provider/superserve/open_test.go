package superserve_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	service "github.com/atoll-run/atoll/internal/testing/servicetest/superserve"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/superserve"
	"github.com/atoll-run/atoll/sandbox"
)

// remembering is a service that creates nothing and records requests.
type remembering struct {
	hosts []string
	body  map[string]any
}

func (m *remembering) RoundTrip(r *http.Request) (*http.Response, error) {
	m.hosts = append(m.hosts, r.URL.Host)
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("[]")), Request: r}
	if r.Method == http.MethodPost {
		answer.StatusCode, answer.Body = http.StatusBadRequest, io.NopCloser(strings.NewReader(`{"error":{"code":"validation_error","message":"no"}}`))
		return answer, json.NewDecoder(r.Body).Decode(&m.body)
	}
	return answer, nil
}

// Credentials only go to configured hosts.
func TestAddresses(t *testing.T) {
	const tail = "0123456789abcdefghijABCDEFGHIJ_-"
	for name, tt := range map[string]struct{ key, control, data, want string }{ // want is the control host; empty: refused
		"old key":              {key: "ss_live_" + tail, want: "api.superserve.ai"},
		"region":               {key: "ss_live_usw_" + tail, want: "api-usw.superserve.ai"},
		"unknown region":       {key: "ss_live_mars_" + tail},
		"private without data": {key: service.Key, control: "https://superserve.example.com"},
		"private":              {key: service.Key, control: "https://c.example.com", data: "https://boxd-{id}.d.example.com", want: "c.example.com"},
		"the service's own":    {key: service.Key, control: "https://api-staging.superserve.ai/", want: "api-staging.superserve.ai"},
		"no address":           {key: service.Key, control: "ftp://x", data: "https://x"},
		"a password":           {key: service.Key, control: "https://u:" + tail + "@x", data: "https://x"},
	} {
		asked := &remembering{}
		p, err := superserve.New(superserve.Options{Connection: hosted.Connection{Dir: t.TempDir(), Key: key(tt.key), URL: tt.control, Transport: asked}, DataURL: tt.data})
		if tt.want == "" {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || strings.Contains(err.Error(), tail) {
				t.Errorf("%s: %v, want invalid", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := p.Probe(t.Context()); err != nil || !reflect.DeepEqual(asked.hosts, []string{tt.want}) {
			t.Errorf("%s: asked %v, want %s: %v", name, asked.hosts, tt.want, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAsked checks the requests for a sandbox.
func TestAsked(t *testing.T) {
	all := []any{"0.0.0.0/0"}
	for name, tt := range map[string]struct {
		network sandbox.Network
		want    any
	}{
		"nothing":   {sandbox.Network{}, map[string]any{"allow_out": []any{}, "deny_out": all}},
		"unbounded": {sandbox.Network{Egress: []string{"*"}, Plain: &sandbox.EgressRules{Open: true}}, nil},
		"some": {
			sandbox.Network{Egress: []string{"a.test"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Host: "a.test"}, {Host: "*.b.test"}, {Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}},
			map[string]any{"allow_out": []any{"a.test", "*.b.test", "192.0.2.0/24"}, "deny_out": all},
		},
	} {
		asked := &remembering{}
		p, err := superserve.New(superserve.Options{
			Connection: hosted.Connection{Dir: t.TempDir(), Key: key(service.Key), URL: "http://127.0.0.1:1", Transport: asked},
			DataURL:    "http://127.0.0.1:1", Template: "mine", Secrets: map[string]string{"OPENAI_API_KEY": "openai-prod"},
		})
		if err != nil {
			t.Fatal(err)
		}
		s := &sandbox.Spec{ID: "sb-asked", Image: "host", Env: map[string]string{"A": "secret value"}, Network: tt.network, Lifetime: sandbox.Lifetime{Timeout: 1500 * time.Millisecond}}
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
		delete(asked.body, "metadata")
		want := map[string]any{
			"name": "sb-asked", "from_template": "mine", "timeout_seconds": 2.0, "auto_delete_seconds": 0.0, "preview_access": "private",
			"secrets": map[string]any{"OPENAI_API_KEY": "openai-prod"},
		}
		if tt.want != nil {
			want["network"] = tt.want
		}
		if !reflect.DeepEqual(asked.body, want) {
			t.Errorf("%s: asked for %v, want %v", name, asked.body, want)
		}
		for what, change := range map[string]func(*sandbox.Spec){
			"mounts":   func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
			"image":    func(s *sandbox.Spec) { s.Image = "debian:12" },
			"lifetime": func(s *sandbox.Spec) { s.Lifetime.Timeout = 8 * 24 * time.Hour },
			"rules":    func(s *sandbox.Spec) { s.Network = sandbox.Network{Egress: []string{"a.test"}} },
		} {
			refused := *s
			change(&refused)
			if _, err := p.Create(t.Context(), &refused); p.ErrorCode(err) != sandbox.CodeUnsupported {
				t.Errorf("%s: %v, want unsupported", what, err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A key of another account does not show that a sandbox is gone.
func TestOtherAccount(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	const other = "ss_live_use_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"
	w.AddKey(other, "team-2")
	p := w.Open(t, dir)
	in := w.make(t, p, spec("sb-mine"))
	opts := w.options(dir)
	opts.Key = key(other)
	q, err := superserve.New(opts)
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
}

// TestKeySources reads keys from a file and a command, and again when the
// service rejects one. A key only goes to its own region.
func TestKeySources(t *testing.T) {
	const first, second = "ss_live_use_yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy", "ss_live_use_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
	file := filepath.Join(t.TempDir(), "key")
	write := func(key string) {
		if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, source := range map[string]*credential.Source{
		"file":    credential.New("SUPERSERVE_API_KEY", "", file, ""),
		"command": credential.New("SUPERSERVE_API_KEY", "", "", "cat "+file),
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(t)
			w.AddKey(first, "team-3")
			write(first)
			opts := w.options(t.TempDir())
			opts.Key = source
			p, err := superserve.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			in, err := p.Create(t.Context(), spec("sb-key"))
			if err != nil {
				t.Fatal(err)
			}
			w.AddKey(second, "team-3")
			w.RevokeKey(first)
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeUnauthorized || strings.Contains(err.Error(), first) {
				t.Errorf("Attach with a rejected key: %v, want unauthorized", err)
			}
			write(second)
			if _, err := p.Attach(t.Context(), in.ID()); err != nil {
				t.Errorf("Attach with the new key: %v", err)
			}
			if err := in.Destroy(t.Context()); err != nil || len(w.Names()) > 0 {
				t.Errorf("Destroy: %v, %d are left", err, len(w.Names()))
			}
		})
	}
	write("ss_live_usw_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
	asked := &remembering{}
	p, err := superserve.New(superserve.Options{Connection: hosted.Connection{Dir: t.TempDir(), Key: credential.New("SUPERSERVE_API_KEY", "", file, ""), Transport: asked}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Attach(t.Context(), "sb-region"); p.ErrorCode(err) != sandbox.CodeInvalid || len(asked.hosts) > 0 {
		t.Errorf("a key of another region: %v, asked %v; want invalid and no request", err, asked.hosts)
	}
}

// Images are templates of the service.
func TestImages(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	for image, want := range map[string]sandbox.Code{"": "", "host": "", "template:x": "", "template:": sandbox.CodeUnsupported, "debian:12": sandbox.CodeUnsupported} {
		if err := p.CheckImage(image); sandbox.CodeOf(err) != want {
			t.Errorf("%q: %v, want code %q", image, err, want)
		}
	}
	s := spec("sb-image")
	s.Image = "template:no-such"
	if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeInvalid || len(w.Names()) > 0 {
		t.Errorf("Create of an unknown template: %v", err)
	}
}
