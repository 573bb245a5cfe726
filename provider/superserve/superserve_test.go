package superserve_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/drivertest"
	service "github.com/atoll-run/atoll/internal/servicetest/superserve"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/superserve"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server)
	return w
}

// options returns the options of a provider that uses the service.
func (w *world) options(dir string) superserve.Options {
	return superserve.Options{
		Dir: dir, APIKey: service.Key, ControlURL: w.url, DataURL: w.named(), Executable: os.Getenv("ATOLL_BIN"),
		Transport: hostedtest.Transport(),
	}
}

// named is the URL with a domain name, which previews need.
func (w *world) named() string { return strings.Replace(w.url, "127.0.0.1", "localhost", 1) }

// open opens a provider that is closed with the test.
func (w *world) open(t *testing.T, dir string) *superserve.Provider {
	t.Helper()
	p, err := superserve.New(w.options(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestConformance(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	hostedtest.WarmUp(t, w.backing)
	h := drivertest.Harness{
		New:      func(context.Context) (driver.Provider, error) { return superserve.New(w.options(dir)) },
		Spec:     func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Parallel: true,
	}
	if testing.Short() { // the guest is the same for every provider
		h.Only = []string{
			"capabilities", "lifecycle", "reattach", "rejoin", "exec", "stdin", "ports", "previews", "usage", "snapshot", "restore", "fork/processes",
			"fork/files-only", "fork/callers", "errors", "secrets", "concurrency", "leaks", "mounts", "images", "network", "pause", "deadline", "resize",
		}
	}
	drivertest.Run(t, h)
	t.Logf("%d sandboxes and %d snapshots were asked for", w.Faults.Requests(http.MethodPost, "/sandboxes"), w.Faults.Requests(http.MethodPost, "/sandboxes/*/snapshot"))
	if n := len(w.IDs()) + w.Snapshots(); n > 0 {
		t.Errorf("%d sandboxes and snapshots are left", n)
	}
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "mounts", "network", "pause", "resize"}
	hostedtest.Check(t, superserve.Name, service.Key, lacks, "SUPERSERVE_API_KEY="+service.Key, "SUPERSERVE_BASE_URL="+w.url, "SUPERSERVE_DATA_URL="+w.named())
	if n := len(w.IDs()) + w.Snapshots(); n > 0 {
		t.Errorf("%d sandboxes and snapshots are left", n)
	}
}
