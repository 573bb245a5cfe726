// Package hostedtest contains the shared tests of providers of hosted services,
// and the gVisor backend of the fakes of these services.
package hostedtest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// Main is TestMain. It builds the program that kernels and guests run from. The
// test binary cannot be used, because with the race detector it is not static.
func Main(m *testing.M) int {
	dir, remove, err := scratch.Dir("atoll-hosted-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = remove() }()
	_ = os.Setenv("TMPDIR", dir) //nolint:forbidigo // before any test runs, for all of them
	if os.Getenv("ATOLL_BIN") == "" {
		bin := filepath.Join(dir, "atoll")
		build := exec.CommandContext(context.Background(), "go", "build", "-buildvcs=false", "-o", bin, "../../cmd/atoll")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building the kernel: %v\n%s", err, out)
			return 1
		}
		_ = os.Setenv("ATOLL_BIN", bin) //nolint:forbidigo // before any test runs, for all of them
	}
	imagesDir = filepath.Join(dir, "images")
	return m.Run()
}

var imagesDir string

var images = sync.OnceValues(func() (*image.Store, error) { return image.Open(imagesDir, image.Options{}) })

// Kernels returns a gVisor provider on this machine, for a fake.
func Kernels(t *testing.T) driver.Provider {
	t.Helper()
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	backing, err := gvisor.New(gvisor.Options{StateDir: t.TempDir(), Images: store, Attached: true, Kernel: os.Getenv("ATOLL_BIN")})
	if err != nil {
		t.Fatal(err)
	}
	return backing
}

// Service is a fake service.
type Service interface {
	http.Handler
	Close(ctx context.Context) error
}

// Serve serves a fake until the test ends. Its sandboxes run on backing. It
// returns its address.
func Serve(t *testing.T, backing driver.Provider, s Service) string {
	t.Helper()
	server := httptest.NewUnstartedServer(s)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true) // for gRPC
	server.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("closing the service: %v", err)
		}
		server.Close()
		if err := backing.Close(); err != nil {
			t.Error(err)
		}
	})
	return server.URL
}

// Transport returns a transport that closes idle connections early, so that
// they do not count as leaks.
func Transport() *http.Transport {
	return &http.Transport{IdleConnTimeout: 200 * time.Millisecond, MaxIdleConnsPerHost: 16}
}

// WarmUp creates and destroys a sandbox, so that what the backing provider
// starts with its first one does not count as a leak of the tested driver.
func WarmUp(t *testing.T, backing driver.Provider) {
	t.Helper()
	first, err := backing.Create(t.Context(), &sandbox.Spec{ID: "first", Name: "first", Image: "host"})
	if err == nil {
		err = first.Destroy(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Says runs a script and returns its output.
func Says(t *testing.T, in driver.Instance, script string) string {
	t.Helper()
	out, err := servicetest.Run(t.Context(), in, sandbox.Command{Shell: script}, 1<<20)
	if err != nil || out.Exit.Code != 0 {
		t.Errorf("%s: %+v, %v", script, out, err)
	}
	return string(out.Stdout)
}
