package services_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/sandbox"
)

// slowAttach is a provider that calls before once, in the next Attach.
type slowAttach struct {
	driver.Provider
	mu     sync.Mutex
	before func()
}

func (p *slowAttach) Unwrap() any { return p.Provider }

func (p *slowAttach) next(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = f
}

func (p *slowAttach) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	p.mu.Lock()
	f := p.before
	p.before = nil
	p.mu.Unlock()
	if f != nil {
		f()
	}
	return p.Provider.Attach(ctx, id)
}

// A sandbox may be paused, stopped or removed after a request has read its
// record. The request gets the same result as one that arrives later.
func TestChangeWhileOpened(t *testing.T) {
	sleeps := sandbox.Lifetime{Timeout: time.Minute, TimeoutAction: sandbox.IdleSleep, Wakes: true}
	pauses := func(toDisk bool) func(*services.Services, context.Context) error {
		return func(p *services.Services, ctx context.Context) error {
			_, err := p.Sandboxes.Pauser.Pause(ctx, "one", toDisk)
			return err
		}
	}
	timeout := func(*services.Services, context.Context) error {
		time.Sleep(2 * time.Minute)
		return nil
	}
	for name, c := range map[string]struct {
		life   sandbox.Lifetime
		change func(*services.Services, context.Context) error
		want   sandbox.Code // "": the request succeeds
		state  sandbox.State
	}{
		"timeout":                    {sleeps, timeout, "", sandbox.Running},
		"timeout, no waking":         {sandbox.Lifetime{Timeout: time.Minute, TimeoutAction: sandbox.IdleSleep}, timeout, sandbox.CodeConflict, sandbox.Paused},
		"timeout, stops":             {sandbox.Lifetime{Timeout: time.Minute, TimeoutAction: sandbox.IdleStop}, timeout, sandbox.CodeConflict, sandbox.Stopped},
		"timeout, ends":              {sandbox.Lifetime{Timeout: time.Minute}, timeout, sandbox.CodeGone, sandbox.Gone},
		"pause to disk":              {sleeps, pauses(true), "", sandbox.Running},
		"pause in memory":            {sleeps, pauses(false), "", sandbox.Running},
		"pause to disk, no waking":   {sandbox.Lifetime{}, pauses(true), sandbox.CodeConflict, sandbox.Paused},
		"pause in memory, no waking": {sandbox.Lifetime{}, pauses(false), sandbox.CodeConflict, sandbox.Paused},
		"removal":                    {sleeps, func(p *services.Services, ctx context.Context) error { return p.Sandboxes.Remover.Destroy(ctx, "one") }, sandbox.CodeGone, sandbox.Gone},
	} {
		t.Run(name, func(t *testing.T) {
			slow := &slowAttach{}
			wrap := func(p driver.Provider) driver.Provider {
				slow.Provider = p
				return slow
			}
			onFakeTimeWith(t, wrap, func(t *testing.T, p *services.Services, ctx context.Context) {
				b := create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: c.life})
				slow.next(func() {
					if err := c.change(p, ctx); err != nil {
						t.Error(err)
					}
				})
				request, done := context.WithTimeout(ctx, time.Hour)
				defer done()
				sb, err := p.Exec.Open(request, "one")
				if err == nil {
					_, err = sb.Files().Stat(request, "/")
				}
				if sandbox.CodeOf(err) != c.want {
					t.Errorf("the request ends with %v, want %q", err, c.want)
				}
				now := get(t, p, ctx, string(b.ID))
				if now.State != c.state || now.State == sandbox.Gone && now.Reason == "it is not there any more" {
					t.Errorf("the sandbox is %s (%s), want %s", now.State, now.Reason, c.state)
				}
				if c.want == sandbox.CodeGone {
					return
				}
				if err := p.Sandboxes.Remover.Destroy(ctx, "one"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
