package hostedtest

import (
	"context"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/sandbox"
)

// World opens providers that use one fake service.
type World[P driver.Provider] struct {
	Name string // of the provider
	New  func(dir string) (P, error)
	// Left returns the names of the objects that the service has. It may be nil.
	Left func() []string
	// Busy counts what ends a moment after its sandbox, such as commands. Nil:
	// nothing does.
	Busy func() int
}

// Opener opens a provider.
func (w *World[P]) Opener(dir string) (driver.Provider, error) { return w.New(dir) }

// Open opens a provider that is closed with the test.
func (w *World[P]) Open(t *testing.T, dir string) P {
	t.Helper()
	p, err := w.New(dir)
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

// patience is how long a test waits for what takes a moment. Each sandbox of a fake
// is one of this machine, which may be busy.
const patience = 5 * time.Minute

// Empty checks that the service has nothing left.
func (w *World[P]) Empty(t *testing.T) {
	t.Helper()
	tick, late := time.NewTicker(20*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for {
		var left []string
		busy := 0
		if w.Left != nil {
			left = w.Left()
		}
		if w.Busy != nil {
			busy = w.Busy()
		}
		if len(left) == 0 && busy == 0 {
			return
		}
		select {
		case <-tick.C: // a daemon may still be removing one
		case <-late:
			t.Errorf("%v are left, %d are still busy", left, busy)
			return
		}
	}
}

// Conformance runs the driver suite. In short mode it runs what depends on the
// service, and the groups in more: the guest is the same for every provider.
func (w *World[P]) Conformance(t *testing.T, more ...string) {
	dir := t.TempDir()
	h := drivertest.Harness{
		New:      func(context.Context) (driver.Provider, error) { return w.Opener(dir) },
		Spec:     func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Parallel: true, Patience: patience,
	}
	if testing.Short() {
		h.Only = append([]string{"capabilities", "lifecycle", "errors", "images", "network", "pause", "deadline"}, more...)
	}
	drivertest.Run(t, h)
	w.Empty(t)
}

// ThroughDaemon uses the provider in sessions, in saved sessions and as
// ctx.sandbox, each with a service of its own.
func ThroughDaemon[P driver.Provider](t *testing.T, serve func(t *testing.T) *World[P]) {
	for name, test := range map[string]func(*testing.T, string, func(string) (driver.Provider, error)){
		"session": Session, "saved": Saved, "context": Context,
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(t)
			test(t, w.Name, w.Opener)
			w.Empty(t)
		})
	}
}
