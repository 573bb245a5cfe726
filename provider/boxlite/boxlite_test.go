package boxlite_test

import (
	"context"
	"net/http"
	"os"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/drivertest"
	service "github.com/atoll-run/atoll/internal/servicetest/boxlite"
	"github.com/atoll-run/atoll/provider/boxlite"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake server. Its boxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	backing driver.Provider
	url     string
}

// serve starts a server that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing, t.TempDir()), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server)
	return w
}

func (w *world) options(dir string) boxlite.Options {
	return boxlite.Options{Dir: dir, APIKey: service.Key, URL: w.url, Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport()}
}

// open opens a provider that is closed with the test.
func (w *world) open(t *testing.T, change ...func(*boxlite.Options)) *boxlite.Provider {
	t.Helper()
	opts := w.options(t.TempDir())
	for _, f := range change {
		f(&opts)
	}
	p, err := boxlite.New(opts)
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
		New:      func(context.Context) (driver.Provider, error) { return boxlite.New(w.options(dir)) },
		Spec:     func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Parallel: true,
	}
	if testing.Short() { // the guest is the same for every provider
		h.Only = []string{
			"capabilities", "lifecycle", "reattach", "snapshot", "restore", "errors", "leaks", "images", "network", "pause", "deadline",
		}
	}
	drivertest.Run(t, h)
	t.Logf("%d boxes were asked for", w.Faults.Requests(http.MethodPost, "/v1/*/boxes"))
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d boxes are left", n)
	}
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize"}
	hostedtest.Check(t, boxlite.Name, service.Key, lacks, "BOXLITE_REST_URL="+w.url, "BOXLITE_API_KEY="+service.Key)
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d boxes are left", n)
	}
}
