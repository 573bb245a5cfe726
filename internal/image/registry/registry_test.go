package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a registry that answers the ping, and everything else with h.
func serve(t *testing.T, h http.HandlerFunc) name.Repository {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			h(w, r)
		}
	}))
	t.Cleanup(s.Close)
	repo, err := name.NewRepository(strings.TrimPrefix(s.URL, "http://") + "/app")
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

func client(t *testing.T, repo name.Repository) (*Client, error) {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return New(context.Background(), repo, Options{
		Transport: tr, Keychain: authn.NewMultiKeychain(), RetryDelay: time.Millisecond, StallTimeout: 300 * time.Millisecond,
	})
}

func TestGuard(t *testing.T) {
	for _, c := range []struct {
		registry, url string
		want          error // nil is allowed
	}{
		{"ghcr.io", "https://ghcr.io/v2/", nil},
		{"ghcr.io", "https://cdn.example.com/blob", nil},
		{"ghcr.io", "http://ghcr.io/v2/", errPlainHTTP},
		{"ghcr.io", "http://localhost:80/", errInward},
		{"ghcr.io", "https://localhost/", errInward},
		{"ghcr.io", "https://127.0.0.1/", errInward},
		{"ghcr.io", "https://[::1]/", errInward},
		{"ghcr.io", "https://[::ffff:127.0.0.1]/", errInward},
		{"ghcr.io", "https://169.254.169.254/latest", errInward},
		{"ghcr.io", "https://10.0.0.1/", errInward},
		{"ghcr.io", "https://[fd00:ec2::254]/", errInward},
		{"ghcr.io", "https://0.0.0.0/", errInward},
		{"10.0.0.5:5000", "https://10.0.0.5:5000/v2/", nil},
		{"10.0.0.5:5000", "http://10.0.0.5:5000/v2/", errPlainHTTP},
		{"localhost:5000", "http://localhost:5000/v2/", nil},
		{"127.0.0.1:5000", "http://127.0.0.1:6000/token", nil},
		{"localhost:5000", "http://example.com/blob", errPlainHTTP},
		{"plain:5000", "http://plain:5000/v2/", nil},
		{"plain:5000", "http://plain:5001/v2/", errPlainHTTP},
	} {
		req, err := http.NewRequest(http.MethodGet, c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := newGuard(c.registry, Options{PlainHTTP: []string{"plain:5000"}}).check(req); !errors.Is(got, c.want) {
			t.Errorf("%s leads to %s: got %v, want %v", c.registry, c.url, got, c.want)
		}
	}
}

// TestAttackEndlessAnswers has a registry send without end where a little is
// expected.
func TestAttackEndlessAnswers(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}
	c, err := client(t, serve(t, endless))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Manifest(context.Background(), "latest", 1<<20); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("manifest: %v", err)
	}
	if _, err := c.Bytes(context.Background(), "sha256:00", 1<<20); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("config: %v", err)
	}

	// The ping that precedes everything, and the token, are bounded as well.
	s := httptest.NewServer(http.HandlerFunc(endless))
	defer s.Close()
	repo, err := name.NewRepository(strings.TrimPrefix(s.URL, "http://") + "/app")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := client(t, repo); err == nil {
		if _, _, err := c.Manifest(context.Background(), "latest", 1<<20); err == nil {
			t.Error("an endless registry worked")
		}
	}
}

func TestSilence(t *testing.T) {
	c, err := client(t, serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Manifest(context.Background(), "latest", 1<<20)
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "sent nothing") {
		t.Error(err)
	}
}

// TestSlowIsNotSilent moves a byte at a time, all in time.
func TestSlowIsNotSilent(t *testing.T) {
	const data = "slowly but surely"
	sum := sha256.Sum256([]byte(data))
	c, err := client(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for _, b := range []byte(data) {
			_, _ = w.Write([]byte{b})
			_ = http.NewResponseController(w).Flush()
			time.Sleep(30 * time.Millisecond)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "blob"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var steps []int64
	err = c.Blob(context.Background(), "sha256:"+hex.EncodeToString(sum[:]), int64(len(data)), f, func(n int64) { steps = append(steps, n) })
	if err != nil || len(steps) == 0 || steps[len(steps)-1] != int64(len(data)) {
		t.Errorf("%v, steps %v", err, steps)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(f); string(got) != data {
		t.Errorf("got %q", got)
	}
}

type brokenKeychain struct{}

func (brokenKeychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return nil, errors.New("helper said: secret-in-error")
}

func TestBrokenCredentials(t *testing.T) {
	repo := serve(t, func(http.ResponseWriter, *http.Request) {})
	_, err := New(context.Background(), repo, Options{Keychain: brokenKeychain{}})
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || strings.Contains(err.Error(), "secret-in-error") {
		t.Error(err)
	}
}
