package access

import (
	"context"
	"os"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// provider has the sandboxes of a test, or says that they are gone. It answers
// nothing else, and does nothing when one is gone.
type provider struct{ gone bool }

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the provider is away"}

func (provider) Of(context.Context, *store.Sandbox) (*providers.Backend, error) { return nil, errAway }

func (provider) Backend(context.Context, string) (*providers.Backend, error) { return nil, errAway }
func (provider) OnNode(string) bool                                          { return false }

func (p provider) Attach(context.Context, *store.Sandbox) (*engine.Sandbox, error) {
	if p.gone {
		return nil, &sandbox.Error{Code: sandbox.CodeGone, Message: "no such sandbox"}
	}
	return new(engine.Sandbox), nil
}

func (provider) DetachLater(sandbox.ID, string)                {}
func (provider) ForgetEnvironment(context.Context, sandbox.ID) {}
func (provider) Drop(context.Context, string, string)          {}
func (provider) Forget(sandbox.ID)                             {}
func (provider) Sync(*store.Sandbox)                           {}

// resumer resumes sandboxes in the store, and counts them.
type resumer struct {
	records *records.Records
	resumed int
}

func (r *resumer) ResumeLocked(ctx context.Context, t *records.Operation) (store.Sandbox, error) {
	r.resumed++
	return store.Write(ctx, r.records.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(ctx, t.Sandbox.Tenant, t.Sandbox.ID, store.Expect{Observed: true}, func(b *store.Sandbox) { r.records.SetRunning(b, "") })
	})
}

func open(t *testing.T, p provider) (*Opener, *resumer) {
	t.Helper()
	r := records.New(coretest.Open(t))
	r.Providers, r.Workspaces, r.Snapshots, r.Secrets, r.Ports = p, p, p, p, p
	u := &resumer{records: r}
	return &Opener{Core: r.Core, Records: r, Pauser: u}, u
}

func TestReach(t *testing.T) {
	onDisk := store.Rest{Pause: sandbox.PauseDisk, Kept: "snap-1"}
	wakes := onDisk
	wakes.Wakes = true
	for _, tt := range []struct {
		name    string
		state   sandbox.State
		rest    store.Rest
		node    string
		gone    bool // at the provider
		resumed int
		code    sandbox.Code
		after   sandbox.State
	}{
		{name: "running", state: sandbox.Running, after: sandbox.Running},
		{name: "paused by its idle policy", state: sandbox.Paused, rest: wakes, resumed: 1, after: sandbox.Running},
		{name: "paused on request", state: sandbox.Paused, rest: onDisk, code: sandbox.CodeConflict, after: sandbox.Paused},
		{name: "stopped", state: sandbox.Stopped, rest: store.Rest{Kept: "snap-1"}, code: sandbox.CodeConflict, after: sandbox.Stopped},
		{name: "still being created", state: sandbox.Creating, code: sandbox.CodeConflict, after: sandbox.Creating},
		{name: "lost", state: sandbox.Lost, code: sandbox.CodeUnavailable, after: sandbox.Lost},
		{name: "recorded as running, and proved to be gone", state: sandbox.Running, gone: true, code: sandbox.CodeGone, after: sandbox.Gone},
		{name: "of another daemon, which proves nothing", state: sandbox.Running, node: "there", gone: true, code: sandbox.CodeUnavailable, after: sandbox.Running},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, resumer := open(t, provider{gone: tt.gone})
			var b store.Sandbox
			b.ID, b.State, b.Rest, b.Node = "sb-1", tt.state, tt.rest, tt.node
			b = coretest.Add(t, s.Core, coretest.Acme, b)
			_, sb, err := s.reach(coretest.As(t, coretest.Acme, key.Exec), b, s.Records.Uses.Mark())
			coretest.WantCode(t, err, tt.code)
			if (sb != nil) != (tt.code == "") {
				t.Errorf("the handle is %v, want one: %v", sb, tt.code == "")
			}
			if resumer.resumed != tt.resumed {
				t.Errorf("the sandbox was resumed %d times, want %d", resumer.resumed, tt.resumed)
			}
			now, err := s.Records.Record(t.Context(), coretest.Acme, "sb-1")
			coretest.OK(t, err)
			if now.State != tt.after {
				t.Errorf("the sandbox is %s afterwards, want %s", now.State, tt.after)
			}
		})
	}
}

// A record that was read before a pause says that the sandbox runs. It is read
// again, and the sandbox wakes.
func TestReachReadsAgain(t *testing.T) {
	s, resumer := open(t, provider{})
	var b store.Sandbox
	b.ID = "sb-1"
	b = coretest.Add(t, s.Core, coretest.Acme, b)
	seen := s.Records.Uses.Mark()
	s.Records.Uses.Suspend("sb-1")
	_, err := store.Write(t.Context(), s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(t.Context(), coretest.Acme, "sb-1", store.Expect{}, func(b *store.Sandbox) {
			s.Records.SetResting(b, records.Resting{State: sandbox.Paused, Pause: sandbox.PauseDisk, Wakes: true}, "snap-1")
		})
	})
	coretest.OK(t, err)
	now, sb, err := s.reach(coretest.As(t, coretest.Acme, key.Exec), b, seen)
	coretest.OK(t, err)
	if sb == nil || now.State != sandbox.Running || resumer.resumed != 1 {
		t.Errorf("the handle is %v, the sandbox %s and resumed %d times, want a handle, running and once", sb, now.State, resumer.resumed)
	}
}

// A token of a sandbox does not open it while it is being removed.
func TestEnterWhileRemoving(t *testing.T) {
	c := coretest.Open(t)
	var b store.Sandbox
	b.ID = "sb-1"
	coretest.Add(t, c, coretest.Acme, b)
	e := &Entrance{Core: c, Records: records.New(c), Removing: func(id sandbox.ID) bool { return id == "sb-1" }, Tenants: allowed{}}
	_, _, err := e.Enter(t.Context(), "sb-1", "")
	coretest.WantCode(t, err, sandbox.CodeGone)
	e.Removing = func(sandbox.ID) bool { return false }
	_, got, err := e.Enter(t.Context(), "sb-1", "")
	coretest.OK(t, err)
	if got.ID != "sb-1" {
		t.Errorf("Enter() returned the sandbox %q, want sb-1", got.ID)
	}
	_, _, err = e.Enter(t.Context(), "sb-2", "")
	coretest.WantCode(t, err, sandbox.CodeNotFound)
}

// allowed are tenants and keys that are all valid.
type allowed struct{}

func (allowed) Valid(context.Context, *store.Tx, string, string) error        { return nil }
func (allowed) Accepted(context.Context, *store.Tx, string) ([]string, error) { return nil, nil }

func (allowed) Find(_ context.Context, _ *store.Tx, tenant, keyID string) (key.Principal, error) {
	return key.Principal{Tenant: tenant, Key: keyID}, nil
}

func (allowed) KeepAlive(ctx context.Context, _ key.Principal, _, _ string) context.Context {
	return ctx
}
