package islo_test

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
	"github.com/atoll-run/atoll/drivertest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/scratch"
	service "github.com/atoll-run/atoll/internal/servicetest/islo"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/islo"
	"github.com/atoll-run/atoll/sandbox"
)

// TestMain builds the program that kernels and guests run from: the test binary
// itself will not do, because with the race detector it is not static.
func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, remove, err := scratch.Dir("atoll-islo-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = remove() }()
	os.Setenv("TMPDIR", dir)
	if os.Getenv("ATOLL_BIN") == "" {
		bin := filepath.Join(dir, "atoll")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", bin, "../../cmd/atoll")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building the kernel: %v\n%s", err, out)
			return 1
		}
		os.Setenv("ATOLL_BIN", bin)
	}
	imagesDir = filepath.Join(dir, "images")
	return m.Run()
}

var imagesDir string

var images = sync.OnceValues(func() (*image.Store, error) { return image.Open(imagesDir, image.Options{}) })

// world is a service whose sandboxes are kernels of this machine.
type world struct {
	*service.Server
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	backing, err := gvisor.New(gvisor.Options{StateDir: t.TempDir(), Images: store, Attached: true, Kernel: os.Getenv("ATOLL_BIN")})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Server: service.New(backing), backing: backing}
	server := httptest.NewServer(w.Server)
	w.url = server.URL
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Errorf("closing the service: %v", err)
		}
		server.Close()
		if err := backing.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// options are those of a provider that uses the service. Its connections do not
// stay long enough to be taken for leaks.
func (w *world) options(dir string) islo.Options {
	return islo.Options{
		Dir: dir, Key: credential.New("ISLO_API_KEY", service.Key, "", ""), ControlURL: w.url, ComputeURL: w.url, Executable: os.Getenv("ATOLL_BIN"),
		Transport: &http.Transport{IdleConnTimeout: 200 * time.Millisecond, MaxIdleConnsPerHost: 16},
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

func TestConformance(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	// What the service starts with its first sandbox is no leak of the driver.
	first, err := w.backing.Create(t.Context(), spec("first"))
	if err == nil {
		err = first.Destroy(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	h := drivertest.Harness{
		New:      func(context.Context) (driver.Provider, error) { return islo.New(w.options(dir)) },
		Spec:     func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Parallel: true,
	}
	if testing.Short() { // what the guest does is the same for every provider that has it
		h.Only = []string{
			"capabilities", "lifecycle", "reattach", "rejoin", "exec", "stdin", "ports", "usage", "snapshot", "restore", "fork/processes",
			"fork/files-only", "errors", "secrets", "concurrency", "leaks", "mounts", "images", "network", "pause", "deadline", "resize",
		}
	}
	drivertest.Run(t, h)
	t.Logf("%d sandboxes and %d snapshots were asked for", w.Faults.Requests(http.MethodPost, "/sandboxes"), w.Faults.Requests(http.MethodPost, "/snapshots/"))
	if n := len(w.Names()) + w.Snapshots() + len(w.Profiles()); n > 0 {
		t.Errorf("%d sandboxes, snapshots and profiles are left", n)
	}
}

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }
