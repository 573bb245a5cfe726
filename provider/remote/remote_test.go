package remote_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// other is a daemon that serves TCP, with a key for it.
type other struct {
	daemon *daemon.Daemon
	key    string
}

// serve starts a daemon that ends with the test.
func serve(t *testing.T, m *daemontest.Machine) *other {
	t.Helper()
	d := m.Start(t, func(o *daemon.Options) {
		o.Listen, o.Plain = "127.0.0.1:0", true
		if m.Host { // in a directory that other users can traverse
			dir := openDir(t)
			o.Providers = []providerset.Entry{{Name: host.Name, Open: func(providerset.Host) (driver.Provider, error) {
				return host.New(host.Options{Dir: dir})
			}}}
		} else {
			o.Providers = []providerset.Entry{{Name: "fake", Open: func(providerset.Host) (driver.Provider, error) {
				return fake.New(fake.Options{World: m.World, SnapshotDir: filepath.Join(m.Dir, "snapshots")}), nil
			}}}
		}
	})
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	return &other{d, k.Token}
}

// options returns the options of a provider that uses the daemon. Its idle
// connections are closed early, so that they do not count as leaks.
func (o *other) options(dir string) remote.Options {
	return remote.Options{
		Dir: dir, Address: "http://" + o.daemon.TCP().String(), Key: o.key,
		Transport: &http.Transport{IdleConnTimeout: 100 * time.Millisecond, MaxIdleConnsPerHost: 16, DisableCompression: true},
	}
}

// lender returns a provider as that of a node.
func (o *other) lender(dir string) (driver.Provider, error) {
	p, err := remote.New(o.options(dir))
	return remote.Lender{Provider: p}, err
}

func (o *other) open(t *testing.T, dir string) *remote.Provider {
	t.Helper()
	p, err := remote.New(o.options(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// gaps are the promises that the other daemon's API cannot keep: JSON cannot
// carry invalid UTF-8 in environments and in names of files that are listed or
// moved.
var gaps = []string{"exec/env", "files/odd-names"}

// run runs the suite. Exactly the gaps must fail.
func run(t *testing.T, gaps []string, h drivertest.Harness) {
	t.Helper()
	failed := map[string]bool{}
	h.Observe = func(r drivertest.Result) {
		if r.Status != drivertest.Fail {
			return
		}
		if failed[r.Name] = true; !slices.Contains(gaps, r.Name) {
			t.Errorf("%s: %s", r.Name, strings.Join(r.Messages, "\n"))
		}
	}
	report := drivertest.Check(t.Context(), h)
	if len(report.Results) < 100 {
		t.Errorf("only %d cases ran: %v", len(report.Results), report.Err())
	}
	for _, name := range gaps {
		if !failed[name] {
			t.Errorf("%s passes and is no longer a gap", name)
		}
	}
}

// openDir is a short directory that other users can traverse, unlike t.TempDir.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-remote") //nolint:usetesting // other users cannot traverse t.TempDir
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// The daemon's sandboxes are processes of this machine. It runs in a separate
// process.
func TestConformance(t *testing.T) {
	need.Full(t, "TestConformanceMemory takes the same way to other sandboxes")
	m := daemontest.New(t)
	m.Host = true
	o, dir := serve(t, m), t.TempDir()
	run(t, gaps, drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return o.lender(dir) },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Dir:  workdir,
	})
}

// The daemon's sandboxes are in memory: they can be paused and have snapshots.
// Their clock stops while they are paused, and the fake's programs handle no
// signals.
func TestConformanceMemory(t *testing.T) {
	m := daemontest.New(t)
	o, dir := serve(t, m), t.TempDir()
	run(t, append(gaps, "pause/deadline", "signal/trap", "signal/ignored"), drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return o.lender(dir) },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Echo: []string{"echod"},
	})
}

// workdir is the directory in which a sandbox of provider host starts commands.
func workdir(in driver.Instance) string {
	p, err := in.Exec(context.Background(), &sandbox.Command{Args: []string{"pwd"}})
	if err != nil {
		return "/nonexistent"
	}
	defer p.Close()
	out, _ := io.ReadAll(p.Stdout())
	return strings.TrimSpace(string(out))
}
