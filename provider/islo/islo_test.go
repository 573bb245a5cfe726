package islo_test

import (
	"context"
	"net/http"
	"os"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/drivertest"
	service "github.com/atoll-run/atoll/internal/servicetest/islo"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/islo"
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

func (w *world) options(dir string) islo.Options {
	return islo.Options{
		Dir: dir, Key: credential.New("ISLO_API_KEY", service.Key, "", ""), ControlURL: w.url, ComputeURL: w.url, Executable: os.Getenv("ATOLL_BIN"),
		Transport: hostedtest.Transport(),
	}
}

// open opens a provider that is closed with the test.
func (w *world) open(t *testing.T, dir string) *islo.Provider {
	t.Helper()
	p, err := islo.New(w.options(dir))
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

// empty checks that the service has no resources left.
func (w *world) empty(t *testing.T) {
	t.Helper()
	if n := len(w.Names()) + w.Snapshots() + len(w.Profiles()); n > 0 {
		t.Errorf("%v, %d snapshots and %v are left", w.Names(), w.Snapshots(), w.Profiles())
	}
}

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

func TestConformance(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	hostedtest.WarmUp(t, w.backing)
	h := drivertest.Harness{
		New:      func(context.Context) (driver.Provider, error) { return islo.New(w.options(dir)) },
		Spec:     func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Parallel: true,
	}
	if testing.Short() { // the guest is the same for every provider
		h.Only = []string{
			"capabilities", "lifecycle", "reattach", "snapshot", "restore", "errors", "leaks", "images", "network", "pause", "deadline",
		}
	}
	drivertest.Run(t, h)
	t.Logf("%d sandboxes and %d snapshots were asked for", w.Faults.Requests(http.MethodPost, "/sandboxes"), w.Faults.Requests(http.MethodPost, "/snapshots/"))
	w.empty(t)
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize"}
	hostedtest.Check(t, islo.Name, service.Key, lacks, "ISLO_API_KEY="+service.Key, "ISLO_BASE_URL="+w.url, "ISLO_COMPUTE_URL="+w.url)
	w.empty(t)
}

func TestSession(t *testing.T) {
	w := serve(t)
	hostedtest.Session(t, islo.Name, func(dir string) (driver.Provider, error) { return islo.New(w.options(dir)) })
	w.empty(t)
}

func TestSaved(t *testing.T) {
	w := serve(t)
	hostedtest.Saved(t, islo.Name, func(dir string) (driver.Provider, error) { return islo.New(w.options(dir)) })
	w.empty(t)
}

func TestContext(t *testing.T) {
	w := serve(t)
	hostedtest.Context(t, islo.Name, func(dir string) (driver.Provider, error) { return islo.New(w.options(dir)) })
	w.empty(t)
}
