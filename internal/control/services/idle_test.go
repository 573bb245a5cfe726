package services_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// onFakeTime runs a test with simulated time.
func onFakeTime(t *testing.T, test func(t *testing.T, m *machine, p *services.Services, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		p, ctx, stop := m.start(t)
		test(t, m, p, ctx)
		stop()
		m.clear(t)
	})
}

func idle(after time.Duration, action sandbox.IdleAction) sandbox.Lifetime {
	return sandbox.Lifetime{Idle: after, IdleAction: action}
}

// An idle sandbox is paused or removed as its policy says, and not before.
func TestIdlePolicies(t *testing.T) {
	for action, want := range map[sandbox.IdleAction]sandbox.State{
		sandbox.IdlePause: sandbox.Paused, sandbox.IdleSleep: sandbox.Paused, sandbox.IdleStop: sandbox.Stopped,
		"": sandbox.Stopped, sandbox.IdleDelete: sandbox.Gone,
	} {
		t.Run("policy "+string(action), func(t *testing.T) {
			onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
				b := create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: idle(time.Minute, action)})
				if _, err := shell(p, ctx, "one", "echo kept > /f"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(58 * time.Second)
				if now := get(t, p, ctx, "one"); now.State != sandbox.Running { // reading does not count as use
					t.Errorf("too early: %+v", now)
				}
				time.Sleep(5 * time.Second)
				if now := get(t, p, ctx, string(b.ID)); now.State != want {
					t.Errorf("%+v, want %s", now, want)
				}
			})
		})
	}
}

// A sandbox paused by its idle policy wakes when it is used, also by several
// callers at once. One that was paused on request does not.
func TestWakeOnUse(t *testing.T) {
	uses := map[string]func(p *services.Services, ctx context.Context) error{
		"a command": func(p *services.Services, ctx context.Context) error {
			out, err := shell(p, ctx, "one", "cat /f")
			if err == nil && out != "kept\n" {
				err = errors.New("the file is " + out)
			}
			return err
		},
		"a file": func(p *services.Services, ctx context.Context) error {
			sb, err := p.Exec.Open(ctx, "one")
			if err == nil {
				_, err = sb.Files().Stat(ctx, "/f")
			}
			return err
		},
		"many": func(p *services.Services, ctx context.Context) error {
			done := make(chan error)
			for range 10 {
				go func() {
					_, err := shell(p, ctx, "one", "true")
					done <- err
				}()
			}
			var failed []error
			for range 10 {
				failed = append(failed, <-done)
			}
			return errors.Join(failed...)
		},
	}
	onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
		create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: idle(time.Minute, sandbox.IdlePause)})
		if _, err := shell(p, ctx, "one", "echo kept > /f"); err != nil {
			t.Fatal(err)
		}
		for what, use := range uses {
			time.Sleep(2 * time.Minute)
			if now := get(t, p, ctx, "one"); now.State != sandbox.Paused || !now.Rest.Wakes {
				t.Fatalf("before %s: %+v", what, now)
			}
			request, done := context.WithCancel(ctx)
			if err := use(p, request); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			done()
			if now := get(t, p, ctx, "one"); now.State != sandbox.Running {
				t.Errorf("%s does not wake it: %+v", what, now)
			}
		}
		if _, err := p.Sandboxes.Pauser.Pause(ctx, "one", false); err != nil {
			t.Fatal(err)
		}
		_, err := shell(p, ctx, "one", "true")
		wantCode(t, err, sandbox.CodeConflict)
	})
}

// Running commands, in the foreground or not, and handles count as use while
// they last.
func TestUseKeepsAwake(t *testing.T) {
	onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
		create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: idle(time.Minute, sandbox.IdlePause)})
		is := func(after time.Duration, want sandbox.State, what string) {
			t.Helper()
			time.Sleep(after)
			if now := get(t, p, ctx, "one"); now.State != want {
				t.Errorf("%s: %+v, want %s", what, now, want)
			}
		}
		request, done := context.WithCancel(ctx)
		sb, err := p.Exec.Open(request, "one")
		if err != nil {
			t.Fatal(err)
		}
		is(10*time.Minute, sandbox.Running, "an open handle")
		proc, err := sb.Exec(request, sandbox.Command{Shell: "sleep 1200; echo over", Background: true})
		if err != nil {
			t.Fatal(err)
		}
		_ = proc.Close()
		done()
		is(15*time.Minute, sandbox.Running, "a command in the background")
		is(10*time.Minute, sandbox.Paused, "its end")
		request, done = context.WithCancel(ctx)
		if sb, err = p.Exec.Open(request, "one"); err != nil {
			t.Fatal(err)
		}
		r, w := io.Pipe()
		wrote := make(chan error)
		go func() {
			_, err := sb.Files().Write(request, "/f", r, driver.WriteOptions{})
			wrote <- err
			done()
		}()
		is(10*time.Minute, sandbox.Running, "a transfer")
		_ = w.Close()
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		is(2*time.Minute, sandbox.Paused, "its end")
	})
}

// A daemon that starts again finds what sleeps asleep, and counts anew for what
// does not.
func TestIdleAndRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		defer m.clear(t)
		p, ctx, stop := m.start(t)
		create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: idle(time.Minute, sandbox.IdlePause)})
		create(t, p, ctx, sandbox.Spec{Name: "two", Lifetime: idle(time.Hour, sandbox.IdleDelete)})
		time.Sleep(2 * time.Minute)
		stop()
		p, ctx, stop = m.start(t)
		defer stop()
		if now := get(t, p, ctx, "one"); now.State != sandbox.Paused || !now.Rest.Wakes {
			t.Fatalf("%+v", now)
		}
		if out, err := shell(p, ctx, "one", "echo awake"); err != nil || out != "awake\n" {
			t.Errorf("%q %v", out, err)
		}
		if now := get(t, p, ctx, "two"); now.State != sandbox.Running {
			t.Errorf("%+v", now)
		}
	})
}

// A lifetime does not pass while a sandbox rests on disk.
func TestLifetimeStandsStill(t *testing.T) {
	onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
		b := create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: sandbox.Lifetime{Timeout: time.Hour}})
		time.Sleep(30 * time.Minute)
		if _, err := p.Sandboxes.Pauser.Stop(ctx, "one", 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if now := get(t, p, ctx, "one"); now.State != sandbox.Stopped || now.Rest.Left != 30*time.Minute {
			t.Fatalf("%+v", now)
		}
		if _, err := p.Sandboxes.Pauser.Start(ctx, "one"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(29 * time.Minute)
		if now := get(t, p, ctx, "one"); now.State != sandbox.Running {
			t.Errorf("it ended too early: %+v", now)
		}
		time.Sleep(2 * time.Minute)
		if now := get(t, p, ctx, string(b.ID)); now.State != sandbox.Gone || now.Reason != "its lifetime ended" {
			t.Errorf("%+v", now)
		}
	})
}

// A shorter lifetime is one that the daemon itself can enforce.
func TestUpdateLifetime(t *testing.T) {
	onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
		b := create(t, p, ctx, sandbox.Spec{Name: "one"})
		soon := 10 * time.Minute
		if _, err := p.Sandboxes.Updater.Update(ctx, "one", sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &soon}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute)
		if now := get(t, p, ctx, "one"); now.State != sandbox.Running {
			t.Errorf("%+v", now)
		}
		time.Sleep(2 * time.Minute)
		if now := get(t, p, ctx, string(b.ID)); now.State != sandbox.Gone {
			t.Errorf("%+v", now)
		}
	})
}

// If its provider does not end a sandbox in time, the daemon does, and who asks
// later learns why.
func TestProviderIsLate(t *testing.T) {
	onFakeTime(t, func(t *testing.T, m *machine, p *services.Services, ctx context.Context) {
		b := create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: sandbox.Lifetime{Timeout: time.Hour}})
		in, err := fake.New(fake.Options{World: m.world}).Attach(ctx, b.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.(driver.DeadlineSetter).SetDeadline(ctx, time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		now := get(t, p, ctx, string(b.ID))
		if now.State != sandbox.Gone || now.Exit == nil || now.Exit.Reason != sandbox.ReasonLifetime {
			t.Errorf("it is %s, and ended with %+v, want reason %s", now.State, now.Exit, sandbox.ReasonLifetime)
		}
	})
}

// To look at what a sandbox consumes is not to use it, and does not wake it.
func TestUsageIsNoUse(t *testing.T) {
	onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
		create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: idle(time.Minute, sandbox.IdlePause)})
		for range 10 {
			time.Sleep(10 * time.Second)
			if _, err := p.Sandboxes.Reader.Usage(ctx, "one"); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
				t.Fatal(err)
			}
		}
		if now := get(t, p, ctx, "one"); now.State != sandbox.Paused || !now.Rest.Wakes {
			t.Errorf("%+v", now)
		}
		_, err := p.Sandboxes.Reader.Usage(ctx, "one")
		wantCode(t, err, sandbox.CodeConflict)
	})
}
