package services_test

import (
	"context"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/sandbox"
)

// hosted is a provider of a service that pauses sandboxes by itself. The
// provider can neither pause nor save them.
type hosted struct {
	driver.Provider
	mu     sync.Mutex
	paused bool
}

func (h *hosted) set(paused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = paused
}

func (h *hosted) State(context.Context, sandbox.ID) (sandbox.State, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused {
		return sandbox.Paused, nil
	}
	return sandbox.Running, nil
}

func (h *hosted) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		for f, err := range h.Provider.List(ctx) {
			if err == nil {
				f.State, err = h.State(ctx, f.ID)
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

func (h *hosted) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	in, err := h.Provider.Create(ctx, spec)
	return hostedInstance{in, h}, err
}

func (h *hosted) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	in, err := h.Provider.Attach(ctx, id)
	return hostedInstance{in, h}, err
}

type hostedInstance struct {
	driver.Instance
	h *hosted
}

func (i hostedInstance) Resume(context.Context) error {
	i.h.set(false)
	return nil
}

// A pause by the service is visible and can be undone.
func TestPausedByTheService(t *testing.T) {
	h := &hosted{}
	host := func(p driver.Provider) driver.Provider {
		h.Provider = p
		return h
	}
	onFakeTimeWith(t, host, func(t *testing.T, p *services.Services, ctx context.Context) {
		create(t, p, ctx, sandbox.Spec{Name: "one"})
		is := func(when string, want sandbox.State) {
			t.Helper()
			if b := get(t, p, ctx, "one"); b.State != want || (b.Rest.Pause == sandbox.PauseMemory) != (want == sandbox.Paused) {
				t.Errorf("%s: %s, paused %q; want %s", when, b.State, b.Rest.Pause, want)
			}
		}
		h.set(true)
		time.Sleep(time.Minute)
		is("paused by the service", sandbox.Paused)
		if b, err := p.Sandboxes.Pauser.Resume(ctx, "one"); err != nil || b.State != sandbox.Running {
			t.Errorf("Resume: %s, %v", b.State, err)
		}
		if state, _ := h.State(ctx, "one"); state != sandbox.Running {
			t.Error("Resume did nothing")
		}
		is("resumed", sandbox.Running)

		h.set(true) // not noticed yet
		if b, err := p.Sandboxes.Pauser.Resume(ctx, "one"); err != nil || b.State != sandbox.Running {
			t.Errorf("Resume of what is recorded as running: %s, %v", b.State, err)
		}
		if state, _ := h.State(ctx, "one"); state != sandbox.Running {
			t.Error("Resume of what is recorded as running did nothing")
		}

		h.set(true)
		_, err := p.Sandboxes.Pauser.Start(ctx, "one")
		wantCode(t, err, sandbox.CodeConflict)
		h.set(false)
		time.Sleep(time.Minute)
		is("resumed by the service", sandbox.Running)
	})
}

// Files are not lost to a Stop that was to keep them.
func TestStopWithoutKeeping(t *testing.T) {
	onFakeTimeWith(t, func(p driver.Provider) driver.Provider { return &hosted{Provider: p} }, func(t *testing.T, p *services.Services, ctx context.Context) {
		create(t, p, ctx, sandbox.Spec{Name: "one"})
		for _, grace := range []time.Duration{0, time.Second} {
			_, err := p.Sandboxes.Pauser.Stop(ctx, "one", grace)
			wantCode(t, err, sandbox.CodeUnsupported)
			if b := get(t, p, ctx, "one"); b.State != sandbox.Running {
				t.Errorf("after a Stop that was refused: %s", b.State)
			}
		}
		if out, err := shell(p, ctx, "one", "echo lives"); err != nil || out != "lives\n" {
			t.Errorf("%q, %v", out, err)
		}
	})
}

func onFakeTimeWith(t *testing.T, provider func(driver.Provider) driver.Provider, test func(t *testing.T, p *services.Services, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.provider = provider
		p, ctx, stop := m.start(t)
		test(t, p, ctx)
		stop()
		m.clear(t)
	})
}
