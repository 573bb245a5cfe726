package records_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// A lifetime stands still while a sandbox rests, and goes on when it runs again.
func TestLifetimeOfResting(t *testing.T) {
	r := records.New(coretest.Open(t))
	stop := sandbox.Lifetime{Timeout: time.Hour, TimeoutAction: sandbox.IdleStop}
	for _, tt := range []struct {
		name    string
		expires time.Duration // from now; 0: never
		life    sandbox.Lifetime
		left    time.Duration // while it rests
		again   time.Duration // when it runs again; 0: never
	}{
		{"no lifetime", 0, sandbox.Lifetime{}, 0, 0},
		{"half of it is over", 30 * time.Minute, sandbox.Lifetime{Timeout: time.Hour}, 30 * time.Minute, 30 * time.Minute},
		{"it is over: hardly any is left", -time.Second, sandbox.Lifetime{Timeout: time.Hour}, 1, 1},
		{"it rests because it is over: it gets another one", -time.Second, stop, 5 * time.Minute, 5 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b store.Sandbox
			b.State, b.Spec.Lifetime, b.Exit = sandbox.Running, tt.life, &sandbox.Exit{}
			if tt.expires != 0 {
				b.Expires = coretest.Now.Add(tt.expires)
			}
			r.SetResting(&b, records.Resting{State: sandbox.Paused, Pause: sandbox.PauseDisk, Wakes: true}, "snap-1")
			if want := (store.Rest{Pause: sandbox.PauseDisk, Kept: "snap-1", Wakes: true, Left: tt.left}); b.Rest != want {
				t.Errorf("resting, the record has %+v, want %+v", b.Rest, want)
			}
			if b.State != sandbox.Paused || !b.Expires.IsZero() || b.Exit != nil {
				t.Errorf("resting, it is %s, ends at %v and has the exit %v, want paused without end and exit", b.State, b.Expires, b.Exit)
			}
			r.SetRunning(&b, "why")
			var want time.Time
			if tt.again != 0 {
				want = coretest.Now.Add(tt.again)
			}
			if b.State != sandbox.Running || b.Reason != "why" || b.Rest != (store.Rest{}) || !b.Expires.Equal(want) {
				t.Errorf("running again, it is %s (%q), rests %+v and ends at %v, want running (\"why\"), no rest, and the end %v", b.State, b.Reason, b.Rest, b.Expires, want)
			}
			if !b.Active.Equal(coretest.Now) {
				t.Errorf("running again, it was last used at %v, want now (%v)", b.Active, coretest.Now)
			}
		})
	}
}

func TestSetLifetime(t *testing.T) {
	for _, tt := range []struct {
		name    string
		life    sandbox.Lifetime
		expires time.Time
		idle    store.Idle
	}{
		{"none", sandbox.Lifetime{}, time.Time{}, store.Idle{}},
		{"a timeout", sandbox.Lifetime{Timeout: time.Hour}, coretest.Now.Add(time.Hour), store.Idle{}},
		{"idle sandboxes stop by default", sandbox.Lifetime{Idle: time.Minute}, time.Time{}, store.Idle{After: time.Minute, Action: "stop"}},
		{"an idle action", sandbox.Lifetime{Idle: time.Minute, IdleAction: sandbox.IdleDelete}, time.Time{}, store.Idle{After: time.Minute, Action: "delete"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b store.Sandbox
			b.Expires, b.Idle = coretest.Now.Add(-time.Hour), store.Idle{After: time.Second, Action: "pause"} // of before
			records.SetLifetime(&b, tt.life, coretest.Now)
			if !b.Expires.Equal(tt.expires) || b.Idle != tt.idle || b.Spec.Lifetime != tt.life {
				t.Errorf("the record ends at %v, is idle by %+v and has %+v, want %v, %+v and %+v", b.Expires, b.Idle, b.Spec.Lifetime, tt.expires, tt.idle, tt.life)
			}
		})
	}
}

// A sandbox that Atoll ended is ended again if it is still there. One that ended
// by itself, or that never was, is not.
func TestEndedOnPurpose(t *testing.T) {
	for reason, want := range map[string]bool{
		records.ReasonRemoved: true, records.ReasonStopped: true, records.ReasonLifetime: true, records.ReasonUnmade: true, records.ReasonIdle: true, records.ReasonLost: true,
		records.ReasonUnfinished: false, "it ended: exited": false, "": false,
	} {
		if got := records.EndedOnPurpose(reason); got != want {
			t.Errorf("EndedOnPurpose(%q) = %v, want %v", reason, got, want)
		}
	}
}

func TestExitOf(t *testing.T) {
	for reason, want := range map[string]sandbox.Reason{
		records.ReasonRemoved: sandbox.ReasonKilled, records.ReasonLifetime: sandbox.ReasonLifetime, "": sandbox.ReasonKilled,
	} {
		var b store.Sandbox
		b.Reason = reason
		if got := records.ExitOf(&b); got.Reason != want || got.Detail != reason || got.Code != 137 {
			t.Errorf("of a sandbox that is gone because %q the exit is %+v, want the reason %s, that detail and the code 137", reason, got, want)
		}
	}
}

// Soon ends the present wait for a reconciliation; Again only lets it be short.
func TestRecheck(t *testing.T) {
	r := records.New(coretest.Open(t))
	hurried := func() bool {
		select {
		case <-r.Recheck.Urgent():
			return true
		default:
			return false
		}
	}
	r.Recheck.Again()
	if !r.Recheck.Wanted() || hurried() {
		t.Error("Again() is not wanted, or ends the present wait")
	}
	r.Recheck.Begin()
	if r.Recheck.Wanted() {
		t.Error("another reconciliation is wanted although one began")
	}
	r.Recheck.Soon()
	r.Recheck.Soon() // does not block
	if !r.Recheck.Wanted() || !hurried() || hurried() {
		t.Error("Soon() is not wanted, or did not end the present wait once")
	}
}

// some is a provider some of whose sandboxes use the gateway.
type some struct {
	driver.Provider
	uses map[sandbox.ID]bool
}

func (some) EgressAbility() enforce.Ability                               { return enforce.Ability{} }
func (some) CanUseGateway() bool                                          { return true }
func (s some) UsesGateway(_ context.Context, id sandbox.ID) (bool, error) { return s.uses[id], nil }

// only has one provider.
type only struct {
	records.Providers
	driver driver.Provider
	err    error
}

func (o *only) Of(context.Context, *store.Sandbox) (*providers.Backend, error) {
	return &providers.Backend{Driver: o.driver}, o.err
}

// A provider with rules of its own says which of its sandboxes use the gateway.
func TestHasGateway(t *testing.T) {
	r := records.New(coretest.Open(t))
	o := &only{driver: some{uses: map[sandbox.ID]bool{"sb-names": true}}}
	r.Providers = o
	var b store.Sandbox
	for id, want := range map[sandbox.ID]bool{"sb-addresses": false, "sb-names": true} {
		b.Sandbox.ID = id
		if got, err := r.HasGateway(t.Context(), &b); got != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", id, got, err, want)
		}
	}
	o.err = errors.New("it cannot be opened")
	if got, err := r.HasGateway(t.Context(), &b); got || !errors.Is(err, o.err) {
		t.Errorf("without its provider: %v, %v", got, err)
	}
}
