package islo_test

import (
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/driver"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/islo"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/islo"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*islo.Provider]
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server)
	w.World = &hostedtest.World[*islo.Provider]{
		Name: islo.Name, New: func(dir string) (*islo.Provider, error) { return islo.New(w.options(dir)) },
		Left: func() []string { return slices.Concat(w.Names(), w.snapshots(), w.Profiles()) },
	}
	return w
}

// snapshots returns the names of all snapshots.
func (w *world) snapshots() (names []string) {
	for _, s := range w.Snapshots("") {
		names = append(names, s.Name)
	}
	return names
}

func (w *world) options(dir string) islo.Options {
	return islo.Options{
		Connection: hosted.Connection{
			Dir: dir, Key: credential.New("ISLO_API_KEY", service.Key, "", ""), URL: w.url, Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport(),
		},
		ComputeURL: w.url,
	}
}

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

func TestConformance(t *testing.T) {
	w := serve(t)
	hostedtest.WarmUp(t, w.backing)
	w.Conformance(t, "reattach", "snapshot", "restore", "leaks")
	t.Logf("%d sandboxes and %d snapshots were asked for", w.Faults.Requests(http.MethodPost, "/sandboxes"), w.Faults.Requests(http.MethodPost, "/snapshots/"))
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize"}
	hostedtest.Check(t, islo.Name, service.Key, lacks, "ISLO_API_KEY="+service.Key, "ISLO_BASE_URL="+w.url, "ISLO_COMPUTE_URL="+w.url)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*islo.Provider] { return serve(t).World })
}
