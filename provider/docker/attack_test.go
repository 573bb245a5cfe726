package docker_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/docker"
	"github.com/atoll-run/atoll/sandbox"
)

// hostile opens a provider with a fake daemon. The provider does not ask for
// the daemon's version.
func hostile(t *testing.T, answer http.HandlerFunc) *docker.Provider {
	t.Helper()
	server := httptest.NewServer(answer)
	p, err := docker.New(docker.Options{
		Dir: t.TempDir(), Host: "tcp://" + strings.TrimPrefix(server.URL, "http://"), APIVersion: "1.44", Image: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return p
}

func say(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// Only the daemon's own list shows that a sandbox does not exist.
func TestNoEvidence(t *testing.T) {
	for _, status := range []int{301, 400, 401, 403, 404, 409, 500, 502, 503, 0} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				if status == 0 {
					panic(http.ErrAbortHandler)
				}
				say(w, status, `{"message":"No such container: gone"}`)
			})
			_, err := p.Attach(t.Context(), "sb-1")
			if code := p.ErrorCode(err); code == sandbox.CodeGone || code == sandbox.CodeNotFound || code == "" {
				t.Errorf("Attach: code %q, want one that does not mean gone: %v", code, err)
			}
			for _, err := range p.List(t.Context()) {
				if err == nil {
					t.Error("List shows something")
				}
			}
			if b, err := p.Binding(t.Context()); err == nil {
				t.Errorf("the binding is %q although no daemon answers", b)
			}
			facts, err := p.Probe(t.Context())
			if err != nil || facts.Available {
				t.Errorf("Probe: available %v, %v", facts.Available, err)
			}
		})
	}
}

// A daemon that replaced another one does not know the other's containers.
func TestOtherDaemon(t *testing.T) {
	var replaced atomic.Bool
	p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/info") && replaced.Load():
			say(w, 200, `{"ID":"second","OSType":"linux"}`)
		case strings.HasSuffix(r.URL.Path, "/info"):
			say(w, 200, `{"ID":"first","OSType":"linux"}`)
		default:
			say(w, 200, `[]`)
		}
	})
	before, err := p.Binding(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
	replaced.Store(true)
	if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Attach with another daemon: %v, want unavailable", err)
	}
	for _, err := range p.List(t.Context()) {
		if p.ErrorCode(err) != sandbox.CodeUnavailable {
			t.Errorf("List with another daemon: %v, want unavailable", err)
		}
	}
	if after, err := p.Binding(t.Context()); err != nil || after != before {
		t.Errorf("the binding was %q and is %q, %v", before, after, err)
	}
}

// Containers without our labels are ignored, whatever the daemon lists.
func TestForeignContainers(t *testing.T) {
	p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/info") {
			say(w, 200, `{"ID":"first","OSType":"linux"}`)
			return
		}
		say(w, 200, `[{"Id":"a","State":"running","Labels":{"run.atoll.id":"sb-1","run.atoll.scope":"other"}},{"Id":"b","State":"running"}]`)
	})
	for f, err := range p.List(t.Context()) {
		t.Errorf("List shows %+v, %v", f, err)
	}
	if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeUnavailable || !errors.Is(err, driver.ErrElsewhere) {
		t.Errorf("Attach: %v, want an error that names another installation", err)
	}
}

// Unsupported requests are refused before the daemon is asked for a container.
func TestRefusals(t *testing.T) {
	p := hostile(t, func(w http.ResponseWriter, r *http.Request) { t.Errorf("the daemon was asked: %s", r.URL) })
	allowed := &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}
	for name, spec := range map[string]*sandbox.Spec{
		"untranslated network": {Image: "host", Network: sandbox.Network{Egress: []string{"example.com"}}},
		"some addresses":       {Image: "host", Network: sandbox.Network{Egress: []string{"192.0.2.0/24"}, Plain: allowed}},
		"directory":            {Image: "dir:/tmp"},
		"archive":              {Image: "tar:/tmp/x.tar"},
		"mount":                {Image: "host", Mounts: []sandbox.Mount{{Source: "/", Target: "/mnt"}}}, // over TCP
	} {
		spec.ID = "sb-1"
		if _, err := p.Create(t.Context(), spec); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", name, err)
		}
	}
}

func TestOptions(t *testing.T) {
	if _, err := docker.New(docker.Options{Dir: t.TempDir(), Host: "ssh://somewhere"}); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("SSH: %v, want unsupported", err)
	}
	if _, err := docker.New(docker.Options{Dir: t.TempDir(), Host: "nonsense"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("nonsense: %v, want invalid", err)
	}
	if _, err := docker.New(docker.Options{Dir: t.TempDir(), Host: "tcp://127.0.0.1:1", CertPath: t.TempDir()}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a certificate that is missing: %v, want invalid", err)
	}
	env := map[string]string{"DOCKER_HOST": "unix://" + filepath.Join(t.TempDir(), "none.sock"), "DOCKER_API_VERSION": "1.44"}
	p, err := docker.New(docker.FromEnvironment(t.TempDir(), func(name string) string { return env[name] }))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.CheckImage("host"); err != nil {
		t.Errorf("the default image: %v", err)
	}
	facts, err := p.Probe(t.Context())
	if err != nil || facts.Available || !facts.Capabilities.Mounts {
		t.Errorf("Probe without a daemon: %+v, %v", facts, err)
	}
}
