package registry

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/atoll-run/atoll/sandbox"
)

// TestAttackInwardRegistry has a tenant name registries that are services of the
// machine and of its networks, and registries that lead there.
func TestAttackInwardRegistry(t *testing.T) {
	var reached atomic.Int64
	trap := listen(t, "127.0.0.2:0", func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	closed := listen(t, "127.0.0.2:0", nil)
	evil := listen(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Redirect(w, r, "http://"+trap+r.URL.Path, http.StatusTemporaryRedirect)
		}
	})
	realm := listen(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x"`, trap))
		w.WriteHeader(http.StatusUnauthorized)
	})
	_, trapPort, _ := net.SplitHostPort(trap)
	texts := map[string][]string{}
	for _, registry := range []string{
		trap, closed, evil, realm, "[::1]:" + trapPort, "localhost:1", "169.254.169.254", "10.255.255.1:5000", "192.168.255.1", "0.0.0.0:" + trapPort,
		"[::ffff:127.0.0.2]:" + trapPort, "there-is-no-such-host.invalid",
	} {
		repo, err := name.NewRepository(registry + "/x/y")
		if err != nil {
			continue // it cannot be requested
		}
		began := time.Now()
		err = pullOne(t, repo, Options{
			Keychain: authn.NewMultiKeychain(), RetryDelay: time.Millisecond,
			Permit: func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.1") },
		})
		if err == nil {
			t.Errorf("%s was pulled from", registry)
			continue
		}
		texts[err.Error()] = append(texts[err.Error()], registry)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%s took %v", registry, took)
		}
	}
	if reached.Load() > 0 {
		t.Errorf("%d requests arrived where none may", reached.Load())
	}
	if len(texts) != 1 {
		t.Errorf("errors differ: %q", texts)
	}
}

// pullOne does the first steps of a pull. The name of the repository is taken
// out of its error.
func pullOne(t *testing.T, repo name.Repository, opts Options) error {
	c, err := New(t.Context(), repo, opts)
	if err == nil {
		_, _, err = c.Manifest(t.Context(), "latest", 1<<20)
	}
	if e, ok := err.(*sandbox.Error); ok { //nolint:errorlint // the outermost one is shown
		e.Subject = ""
	}
	return err
}

// listen serves an address until the test ends; without a handler nothing
// listens there any more.
func listen(t *testing.T, address string, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if h == nil {
		l.Close()
		return l.Addr().String()
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}
