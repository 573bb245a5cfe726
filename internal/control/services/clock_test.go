package services_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/sandbox"
)

// withClock runs a test with a clock that can be set.
func withClock(t *testing.T, test func(t *testing.T, p *services.Services, ctx context.Context, set func(time.Duration))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		var ahead atomic.Int64
		m.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		p, ctx, stop := m.start(t)
		test(t, p, ctx, func(d time.Duration) { ahead.Add(int64(d)) })
		stop()
		m.clear(t)
	})
}

// If the clock is set back, nothing is delayed: idle policies apply, rates are
// counted, and new lifetimes end.
func TestClockIsSetBack(t *testing.T) {
	withClock(t, func(t *testing.T, p *services.Services, ctx context.Context, set func(time.Duration)) {
		create(t, p, ctx, sandbox.Spec{Name: "idle", Lifetime: idle(time.Minute, sandbox.IdlePause)})
		create(t, p, ctx, sandbox.Spec{Name: "busy", Lifetime: idle(time.Minute, sandbox.IdlePause)})
		time.Sleep(10 * time.Second)
		set(-time.Hour)
		brief := create(t, p, ctx, sandbox.Spec{Name: "brief", Lifetime: sandbox.Lifetime{Timeout: 30 * time.Second}})
		for range 4 {
			time.Sleep(20 * time.Second)
			if _, err := shell(p, ctx, "busy", "true"); err != nil {
				t.Fatal(err)
			}
		}
		if b := get(t, p, ctx, string(brief.ID)); b.State != sandbox.Gone {
			t.Errorf("its lifetime does not end: %+v", b)
		}
		if b := get(t, p, ctx, "idle"); b.State != sandbox.Paused {
			t.Errorf("it is not put to rest: %+v", b)
		}
		if b := get(t, p, ctx, "busy"); b.State != sandbox.Running {
			t.Errorf("it is in use: %+v", b)
		}
		r, err := p.Events.VerifyAudit(ctx)
		if err != nil || !r.Sound || r.Records == 0 {
			t.Errorf("%+v, %v", r, err)
		}
		all, err := p.Events.Events(ctx, sandbox.EventQuery{Page: 1000})
		if err != nil || int64(len(all)) != r.Records {
			t.Fatal(len(all), err)
		}
		back := 0
		for i, e := range all {
			if e.Seq != int64(i+1) {
				t.Errorf("record %d is number %d", e.Seq, i+1)
			}
			if i > 0 && e.Time.Before(all[i-1].Time) {
				back++
			}
		}
		if back != 1 {
			t.Errorf("time went back %d times", back)
		}
	})
}
