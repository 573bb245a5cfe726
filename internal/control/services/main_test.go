package services_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/sandbox"
)

// The states of a sandbox after its main command has ended.
func TestMainCommand(t *testing.T) {
	onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
		for name, c := range map[string]struct {
			script   string
			main     sandbox.MainCommand
			after    time.Duration
			state    sandbox.State
			restarts int
		}{
			"once":     {"sleep 1; exit 3", sandbox.MainCommand{}, time.Minute, sandbox.Exited, 0},
			"runs":     {"sleep 1000", sandbox.MainCommand{}, time.Minute, sandbox.Running, 0},
			"fails":    {"exit 3", sandbox.MainCommand{Restart: sandbox.RestartOnFailure, MaxRestarts: 4}, time.Minute, sandbox.Exited, 4},
			"succeeds": {"exit 0", sandbox.MainCommand{Restart: sandbox.RestartOnFailure}, time.Minute, sandbox.Exited, 0},
			// 0.1, 0.2, 0.4, 0.8 and 1.6 seconds are over by then.
			"backoff": {"exit 1", sandbox.MainCommand{Restart: sandbox.RestartOnFailure}, 4 * time.Second, sandbox.Running, 5},
			"always":  {"sleep 20", sandbox.MainCommand{Restart: sandbox.RestartAlways}, 45 * time.Second, sandbox.Running, 2},
			"removed": {"exit 5", sandbox.MainCommand{Remove: true}, time.Minute, sandbox.Gone, 0},
		} {
			c.main.Args = []string{"sh", "-c", c.script}
			made, _, err := p.Sandboxes.Public().Create(ctx, sandbox.CreateRequest{Spec: sandbox.Spec{Name: name, Main: &c.main}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(c.after)
			synctest.Wait()
			s, err := p.Sandboxes.Public().Get(ctx, string(made.ID))
			if err != nil {
				t.Fatal(err)
			}
			if s.State != c.state || s.Main == nil || s.Main.Restarts != c.restarts {
				t.Errorf("%s: it is %s, with %+v; want %s after %d restarts", name, s.State, s.Main, c.state, c.restarts)
			}
			if name == "once" && (s.Exit == nil || s.Exit.Code != 3) {
				t.Errorf("%s: it ended with %+v", name, s.Exit)
			}
			if err := p.Sandboxes.Remover.Destroy(ctx, string(made.ID)); err != nil {
				t.Error(err)
			}
		}
	})
}

// A restart policy outlives the daemon, and a stop ends it.
func TestMainCommandOfAnotherDaemon(t *testing.T) {
	m := newMachine(t)
	p, ctx, stop := m.start(t)
	main := &sandbox.MainCommand{Args: []string{"sh", "-c", "sleep 0.3; exit 1"}, Restart: sandbox.RestartOnFailure}
	id := create(t, p, ctx, sandbox.Spec{Name: "one", Main: main}).ID
	stop()
	p, ctx, stop = m.start(t)
	defer stop()
	defer m.clear(t)
	for get(t, p, ctx, string(id)).Spec.Main.Restarts == 0 {
		select {
		case <-t.Context().Done():
			t.Fatal("it is not started again")
		case <-time.After(20 * time.Millisecond):
		}
	}
	if _, err := p.Sandboxes.Pauser.Stop(ctx, string(id), time.Second); err != nil {
		t.Fatal(err)
	}
	restarts := get(t, p, ctx, string(id)).Spec.Main.Restarts
	b, err := p.Sandboxes.Pauser.Start(ctx, string(id))
	if err != nil {
		t.Fatal(err)
	}
	if b.Spec.Main.Process == "" || b.Spec.Main.Restarts > restarts || b.State != sandbox.Running {
		t.Errorf("after a start it is %s, with %+v", b.State, b.Spec.Main)
	}
}
