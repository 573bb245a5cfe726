package superserve_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/superserve"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/superserve"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*superserve.Provider]
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server)
	w.World = &hostedtest.World[*superserve.Provider]{
		Name: superserve.Name, New: func(dir string) (*superserve.Provider, error) { return superserve.New(w.options(dir)) },
		Left: func() []string { return append(w.Names(), w.snapshots()...) },
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

// key is a source of a constant key.
func key(value string) *credential.Source {
	return credential.New("SUPERSERVE_API_KEY", value, "", "")
}

// options returns the options of a provider that uses the service.
func (w *world) options(dir string) superserve.Options {
	return superserve.Options{
		Connection: hosted.Connection{Dir: dir, Key: key(service.Key), URL: w.url, Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport()},
		DataURL:    w.named(),
	}
}

// named is the URL with a domain name, which previews need.
func (w *world) named() string { return strings.Replace(w.url, "127.0.0.1", "localhost", 1) }

func TestConformance(t *testing.T) {
	w := serve(t)
	hostedtest.WarmUp(t, w.backing)
	w.Conformance(t, "reattach", "rejoin", "exec", "stdin", "ports", "previews", "usage", "snapshot", "restore", "fork/processes", "fork/files-only",
		"fork/callers", "secrets", "concurrency", "leaks", "mounts", "resize")
	t.Logf("%d sandboxes and %d snapshots were asked for", w.Faults.Requests(http.MethodPost, "/sandboxes"), w.Faults.Requests(http.MethodPost, "/sandboxes/*/snapshot"))
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "mounts", "network", "pause", "resize"}
	hostedtest.Check(t, superserve.Name, service.Key, lacks, "SUPERSERVE_API_KEY="+service.Key, "SUPERSERVE_BASE_URL="+w.url, "SUPERSERVE_DATA_URL="+w.named())
	w.Empty(t)
}
