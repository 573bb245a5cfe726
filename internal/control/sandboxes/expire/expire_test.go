package expire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// actor notes what an Expirer has it do. It changes no sandbox.
type actor struct {
	did    []string
	fails  error // of all that it does
	permit error // of a later end
}

func (a *actor) note(format string, args ...any) error {
	a.did = append(a.did, fmt.Sprintf(format, args...))
	return a.fails
}

func (a *actor) PauseLocked(_ context.Context, t *records.Operation, toDisk, wakes bool) (store.Sandbox, error) {
	return t.Sandbox, a.note("pause %s disk=%v wakes=%v", t.Sandbox.ID, toDisk, wakes)
}

func (a *actor) PutToSleep(_ context.Context, t *records.Operation, wakes bool) error {
	return a.note("sleep %s wakes=%v", t.Sandbox.ID, wakes)
}

func (a *actor) StopLocked(_ context.Context, t *records.Operation) (store.Sandbox, error) {
	return t.Sandbox, a.note("stop %s", t.Sandbox.ID)
}

func (a *actor) Keeps(*store.Sandbox, *engine.Sandbox) bool     { return true }
func (a *actor) HasMemory(context.Context, *store.Sandbox) bool { return true }
func (a *actor) Remove(context.Context, *store.Sandbox, audit.Action, string) error {
	return a.note("remove")
}

func (a *actor) DestroyAs(ctx context.Context, ref string, op ops.Op, reason string) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return a.note("destroy %s of %s: %s, %s", ref, who.Tenant, op, reason)
}

func (a *actor) PermitUntil(context.Context, audit.Action, *store.Sandbox, time.Time) error {
	return a.permit
}

// away are providers that cannot be asked.
type away struct{}

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the provider is away"}

func (away) Of(context.Context, *store.Sandbox) (*providers.Backend, error) { return nil, errAway }

func (away) Backend(context.Context, string) (*providers.Backend, error) { return nil, errAway }

func (away) Attach(context.Context, *store.Sandbox) (*engine.Sandbox, error) { return nil, errAway }
func (away) OnNode(string) bool                                              { return false }

// open returns an Expirer on an empty store, and what it acts through.
func open(t *testing.T) (*Expirer, *actor) {
	t.Helper()
	c := coretest.Open(t)
	r := records.New(c)
	r.Providers = away{}
	a := new(actor)
	return &Expirer{Core: c, Records: r, Pauser: a, Remover: a, Policies: a}, a
}

// expiring returns a sandbox that expires after a time, with a lifetime.
func expiring(after time.Duration, l sandbox.Lifetime) (b store.Sandbox) {
	b.ID, b.Expires, b.Spec.Lifetime = "sb-1", coretest.Now.Add(after), l
	return b
}

func TestTimeout(t *testing.T) {
	const minute = time.Minute
	tests := []struct {
		name   string
		change func(*store.Sandbox)
		after  time.Duration
		life   sandbox.Lifetime
		fails  error
		want   []string
		wait   time.Duration
	}{
		{"not over", nil, 7 * time.Second, sandbox.Lifetime{}, nil, nil, 7 * time.Second},
		{"over, without a provider's own timeout", nil, -time.Second, sandbox.Lifetime{}, nil, []string{"destroy sb-1 of acme: sandbox.expire, its lifetime ended"}, maxWait},
		{"the provider ends it first", nil, -time.Second, sandbox.Lifetime{Timeout: minute}, nil, nil, expireGrace},
		{"the provider is late", nil, -expireGrace, sandbox.Lifetime{Timeout: minute}, nil, []string{"destroy sb-1 of acme: sandbox.expire, its lifetime ended"}, maxWait},
		{"to be deleted", nil, -minute, sandbox.Lifetime{Timeout: minute, TimeoutAction: sandbox.IdleDelete}, nil, []string{"destroy sb-1 of acme: sandbox.expire, its lifetime ended"}, maxWait},
		{"to be stopped", nil, -time.Second, sandbox.Lifetime{Timeout: minute, TimeoutAction: sandbox.IdleStop}, nil, []string{"stop sb-1"}, maxWait},
		{"to be put to sleep", nil, -time.Second, sandbox.Lifetime{Timeout: minute, TimeoutAction: sandbox.IdleSleep}, nil, []string{"sleep sb-1 wakes=false"}, maxWait},
		{"to wake again", nil, -time.Second, sandbox.Lifetime{Timeout: minute, TimeoutAction: sandbox.IdleSleep, Wakes: true}, nil, []string{"sleep sb-1 wakes=true"}, maxWait},
		{
			"asleep already", func(b *store.Sandbox) {
				b.State, b.Rest = sandbox.Paused, store.Rest{Pause: sandbox.PauseDisk, Kept: "snap-1"}
			},
			-time.Second,
			sandbox.Lifetime{Timeout: minute, TimeoutAction: sandbox.IdleSleep},
			nil, nil, maxWait,
		},
		{"of another daemon", func(b *store.Sandbox) { b.Node = "there" }, -minute, sandbox.Lifetime{}, nil, nil, maxWait},
		{"that fails is tried again", nil, -time.Second, sandbox.Lifetime{}, errAway, []string{"destroy sb-1 of acme: sandbox.expire, its lifetime ended"}, retryExpiry},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, did := open(t)
			did.fails = tt.fails
			b := expiring(tt.after, tt.life)
			if tt.change != nil {
				tt.change(&b)
			}
			coretest.Add(t, s.Core, coretest.Acme, b)
			wait, err := s.expire(t.Context())
			coretest.OK(t, err)
			if !slices.Equal(did.did, tt.want) {
				t.Errorf("the Expirer did %q, want %q", did.did, tt.want)
			}
			if wait != tt.wait {
				t.Errorf("the Expirer looks again after %v, want %v", wait, tt.wait)
			}
		})
	}
}

// A sandbox that cannot be ended does not delay the others.
func TestTimeoutsAreIndependent(t *testing.T) {
	s, did := open(t)
	did.fails = errAway
	for _, id := range []sandbox.ID{"sb-1", "sb-2", "sb-3"} {
		b := expiring(-time.Second, sandbox.Lifetime{})
		b.ID = id
		coretest.Add(t, s.Core, coretest.Acme, b)
	}
	_, err := s.expire(t.Context())
	coretest.OK(t, err)
	if len(did.did) != 3 {
		t.Errorf("the Expirer did %q, want an attempt for each of 3 sandboxes", did.did)
	}
}

func TestExpire(t *testing.T) {
	refusal := &sandbox.Error{Code: sandbox.CodeDenied, Message: "a policy forbids it"}
	tests := []struct {
		name   string
		from   time.Duration // when it ends now; 0: never
		to     time.Duration
		extend bool
		permit error
		want   time.Duration
		code   sandbox.Code
	}{
		{"a first end", 0, time.Hour, false, nil, time.Hour, ""},
		{"a later end", time.Hour, 2 * time.Hour, false, nil, 2 * time.Hour, ""},
		{"an earlier end", 2 * time.Hour, time.Hour, false, nil, time.Hour, ""},
		{"extending to an earlier end changes nothing", 2 * time.Hour, time.Hour, true, nil, 2 * time.Hour, ""},
		{"extending to a later end", time.Hour, 2 * time.Hour, true, nil, 2 * time.Hour, ""},
		{"a policy refuses the end", time.Hour, 2 * time.Hour, false, refusal, time.Hour, sandbox.CodeDenied},
		{"a policy refuses the longer life", time.Hour, 2 * time.Hour, true, refusal, time.Hour, sandbox.CodeDenied},
		{"a policy cannot refuse what changes nothing", 2 * time.Hour, time.Hour, true, refusal, 2 * time.Hour, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, did := open(t)
			did.permit = tt.permit
			b := expiring(tt.from, sandbox.Lifetime{})
			if tt.from == 0 {
				b.Expires = time.Time{}
			}
			coretest.Add(t, s.Core, coretest.Acme, b)
			ctx := coretest.As(t, coretest.Acme, key.Write)
			_, err := s.Expire(ctx, "sb-1", coretest.Now.Add(tt.to), tt.extend)
			coretest.WantCode(t, err, tt.code)
			now, err := s.Records.Record(t.Context(), "acme", "sb-1")
			coretest.OK(t, err)
			if want := coretest.Now.Add(tt.want); !now.Expires.Equal(want) {
				t.Errorf("the sandbox ends at %v, want %v", now.Expires, want)
			}
		})
	}
}

// Only who may change a sandbox may set its end, and only its tenant.
func TestExpireIsGuarded(t *testing.T) {
	s, _ := open(t)
	coretest.Add(t, s.Core, coretest.Acme, expiring(time.Hour, sandbox.Lifetime{}))
	for _, tt := range []struct {
		name string
		ctx  context.Context
		want sandbox.Code
	}{
		{"nobody", t.Context(), sandbox.CodeUnauthorized},
		{"a reader", coretest.As(t, coretest.Acme, key.Read), sandbox.CodeDenied},
		{"another tenant", coretest.As(t, coretest.Rival, key.Admin), sandbox.CodeNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.Expire(tt.ctx, "sb-1", coretest.Now.Add(time.Minute), false)
			coretest.WantCode(t, err, tt.want)
		})
	}
}

// A sandbox in use is not idle, whatever its record says.
func TestUseIsNotIdle(t *testing.T) {
	s, did := open(t)
	var b store.Sandbox
	b.ID, b.Idle, b.Active = "sb-1", store.Idle{After: time.Minute, Action: string(sandbox.IdleStop)}, coretest.Now.Add(-time.Hour)
	coretest.Add(t, s.Core, coretest.Acme, b)
	_, leave := s.Records.Uses.Begin("sb-1", s.Core.Store.Now)
	coretest.OK(t, s.reap(t.Context()))
	if len(did.did) != 0 {
		t.Errorf("the Expirer did %q with a sandbox in use, want nothing", did.did)
	}
	leave()
	if err := s.reap(t.Context()); err != nil && !errors.Is(err, errAway) {
		t.Errorf("reap() returned %v, want that the provider is away", err)
	}
}
