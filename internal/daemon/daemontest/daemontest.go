// Package daemontest starts daemons for tests, with in-memory sandboxes.
package daemontest

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	_ "github.com/atoll-run/atoll/internal/guest/early" // the test binary is the guest of provider host, too
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/provider/host"
)

// Machine is a state directory and its running sandboxes. Both outlive a
// daemon.
type Machine struct {
	Dir   string
	World *fake.World
	// Fault, if set, is the provider's; see fake.Options.
	Fault func(op string) error
	// Host runs real processes, for tests that need a terminal. They end with the
	// daemon.
	Host bool
}

// New returns a machine without sandboxes.
func New(t testing.TB) *Machine { return &Machine{Dir: t.TempDir(), World: new(fake.World)} }

// Options returns options of a daemon on the machine.
func (m *Machine) Options() daemon.Options {
	if m.Host {
		return daemon.Options{
			StateDir: m.Dir,
			Providers: []providerset.Entry{{Name: host.Name, Open: func(h providerset.Host) (driver.Provider, error) {
				return host.New(host.Options{Dir: h.Dir})
			}}},
			Logger: slog.New(slog.DiscardHandler),
		}
	}
	return daemon.Options{
		StateDir: m.Dir,
		Providers: []providerset.Entry{{Name: "fake", Open: func(providerset.Host) (driver.Provider, error) {
			return fake.New(fake.Options{World: m.World, Fault: m.Fault, Limited: true, SnapshotDir: filepath.Join(m.Dir, "snapshots")}), nil
		}}},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// Provider accesses the sandboxes of the machine without a daemon. The caller
// closes it.
func (m *Machine) Provider() driver.Provider {
	return fake.New(fake.Options{World: m.World, SnapshotDir: filepath.Join(m.Dir, "snapshots")})
}

// Start starts a daemon. It is closed at the end of the test, if not before.
func (m *Machine) Start(t testing.TB, change func(*daemon.Options)) *daemon.Daemon {
	t.Helper()
	opts := m.Options()
	if change != nil {
		change(&opts)
	}
	d, err := daemon.Start(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Client returns a client of the machine's owner.
func Client(t testing.TB, d *daemon.Daemon) *atoll.Client { return Bearer(t, d, "") }

// Bearer returns a client with an API key.
func Bearer(t testing.TB, d *daemon.Daemon, key string) *atoll.Client {
	t.Helper()
	c, err := atoll.New(atoll.Options{Transport: d.Memory().Transport(), Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Store opens the database of the machine, beside a running daemon.
func (m *Machine) Store(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), m.Dir+"/atoll.db", store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
