package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// operate runs f with the methods across tenants.
func operate(s *store.Store, f func(context.Context, *store.Operator) error) error {
	ctx := context.Background()
	return s.Update(ctx, func(tx *store.Tx) error { return f(ctx, tx.Operator()) })
}

func TestNodes(t *testing.T) {
	const stale = time.Minute
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		s := open(store.Options{Now: clk.now})
		register := func(id, instance string) error {
			return operate(s, func(ctx context.Context, o *store.Operator) error {
				return o.Register(ctx, store.Node{ID: id, Instance: instance, Release: "v1"}, stale)
			})
		}
		beat := func(id, instance string) error {
			return operate(s, func(ctx context.Context, o *store.Operator) error { return o.Heartbeat(ctx, id, instance) })
		}
		ok(t, register("n1", "first"))
		ok(t, register("n1", "first"))
		wantCode(t, register("n1", "second"), sandbox.CodeConflict)
		clk.advance(50 * time.Second)
		ok(t, beat("n1", "first"))
		clk.advance(50 * time.Second)
		wantCode(t, register("n1", "second"), sandbox.CodeConflict)
		clk.advance(10 * time.Second)
		ok(t, register("n1", "second")) // the first one died
		wantCode(t, beat("n1", "first"), sandbox.CodeStale)
		ok(t, operate(s, func(ctx context.Context, o *store.Operator) error { return o.Unregister(ctx, "n1", "first") }))
		ok(t, beat("n1", "second"))
		ok(t, operate(s, func(ctx context.Context, o *store.Operator) error { return o.Unregister(ctx, "n1", "second") }))
		wantCode(t, beat("n1", "second"), sandbox.CodeStale)
		ok(t, register("n1", "third")) // without waiting
		ok(t, operate(s, func(ctx context.Context, o *store.Operator) error {
			nodes, err := o.Nodes(ctx)
			if len(nodes) != 1 || nodes[0].Instance != "third" || !nodes[0].Heartbeat.Equal(clk.now()) {
				t.Errorf("nodes: %+v", nodes)
			}
			return err
		}))
	})
}

func TestOneInstancePerNode(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		stores := []*store.Store{open(store.Options{}), open(store.Options{})}
		var wg sync.WaitGroup
		errs := make([]error, 20)
		for i := range errs {
			wg.Go(func() {
				errs[i] = operate(stores[i%2], func(ctx context.Context, o *store.Operator) error {
					return o.Register(ctx, store.Node{ID: "n1", Instance: fmt.Sprint(i)}, time.Hour)
				})
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
				continue
			}
			wantCode(t, err, sandbox.CodeConflict)
		}
		if won != 1 {
			t.Errorf("%d daemons run as one node", won)
		}
	})
}

func TestClaim(t *testing.T) {
	const stale = time.Minute
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		s := open(store.Options{Now: clk.now})
		tenants(t, s, "acme")
		mustCreate(t, s, "acme", testSandbox("web")) // of n1
		claim := func(from, to string) error {
			return operate(s, func(ctx context.Context, o *store.Operator) error { return o.Claim(ctx, "id-web", from, to, stale) })
		}
		wantCode(t, claim("n1", "n2"), sandbox.CodeConflict) // n2 is not registered
		for _, id := range []string{"n1", "n2", "n3"} {
			ok(t, operate(s, func(ctx context.Context, o *store.Operator) error {
				return o.Register(ctx, store.Node{ID: id, Instance: id}, stale)
			}))
		}
		clk.advance(59 * time.Second)
		for _, id := range []string{"n2", "n3"} {
			ok(t, operate(s, func(ctx context.Context, o *store.Operator) error { return o.Heartbeat(ctx, id, id) }))
		}
		wantCode(t, claim("n1", "n2"), sandbox.CodeConflict) // n1 lives
		clk.advance(time.Second)
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i, to := range []string{"n2", "n3"} {
			wg.Go(func() { errs[i] = claim("n1", to) })
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("two claims at once: %v, %v", errs[0], errs[1])
		}
		b, err := get(s, "acme", "id-web")
		ok(t, err)
		if b.Epoch != 1 || b.Version != 2 || b.Node == "n1" {
			t.Errorf("claimed: %+v", b)
		}
		_, err = update(s, "acme", "id-web", store.Expect{Node: "n1"}, setState(sandbox.Gone))
		wantCode(t, err, sandbox.CodeStale)
	})
}

func TestReaperLists(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		s := open(store.Options{Now: clk.now})
		tenants(t, s, "acme", "rival")
		start := clk.now()
		for i, tenant := range []string{"acme", "rival", "acme"} {
			b := testSandbox(fmt.Sprint("b", i))
			b.Expires = start.Add(time.Duration(3-i) * time.Minute)
			b.Idle = store.Idle{After: 10 * time.Minute, Action: "stop"}
			b.State = sandbox.Running
			mustCreate(t, s, tenant, b)
		}
		never := testSandbox("never")
		never.State = sandbox.Running
		mustCreate(t, s, "acme", never)
		foreign := testSandbox("foreign")
		foreign.Node, foreign.Expires = "n2", start
		mustCreate(t, s, "acme", foreign)

		wantIDs := func(what, want string, list func(context.Context, *store.Operator) ([]store.Sandbox, error)) {
			t.Helper()
			ok(t, operate(s, func(ctx context.Context, o *store.Operator) error {
				sandboxes, err := list(ctx, o)
				got := ""
				for _, b := range sandboxes {
					got += " " + b.Name
				}
				if got != want {
					t.Errorf("%s:%s, want%s", what, got, want)
				}
				return err
			}))
		}
		expired := func(ctx context.Context, o *store.Operator) ([]store.Sandbox, error) { return o.Expired(ctx, "n1", 10) }
		idle := func(ctx context.Context, o *store.Operator) ([]store.Sandbox, error) { return o.Idle(ctx, "n1", 10) }
		clk.advance(2 * time.Minute)
		wantIDs("expired", " b2 b1", expired)
		wantIDs("idle", "", idle)
		ctx := context.Background()
		ok(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Sandboxes().Touch(ctx, "rival", "id-b1", tx.Now()) }))
		clk.advance(9 * time.Minute)
		wantIDs("idle", " b0 b2", idle)
		_, err := update(s, "acme", "id-b2", store.Expect{Version: 1}, setState(sandbox.Gone))
		ok(t, err)
		wantIDs("expired", " b1 b0", expired)
		wantIDs("held", " b0 b1", func(ctx context.Context, o *store.Operator) ([]store.Sandbox, error) {
			return o.Sandboxes(ctx, "n1", "", 2)
		})
		wantIDs("held", " never", func(ctx context.Context, o *store.Operator) ([]store.Sandbox, error) {
			return o.Sandboxes(ctx, "n1", "id-b1", 2)
		})
		ok(t, operate(s, func(ctx context.Context, o *store.Operator) error {
			n, err := o.PurgeGone(ctx, clk.now(), 10) // gone just now
			if n != 0 {
				t.Errorf("purged too early: %d", n)
			}
			return err
		}))
		clk.advance(time.Second)
		ok(t, operate(s, func(ctx context.Context, o *store.Operator) error {
			n, err := o.PurgeGone(ctx, clk.now(), 10)
			if n != 1 {
				t.Errorf("%d purged, want 1", n)
			}
			return err
		}))
		_, err = get(s, "acme", "id-b2")
		wantCode(t, err, sandbox.CodeNotFound)
		ok(t, operate(s, func(ctx context.Context, o *store.Operator) error {
			b, err := o.Sandbox(ctx, "id-b1")
			if b.Tenant != "rival" {
				t.Errorf("any tenant's sandbox: %+v", b)
			}
			return err
		}))
	})
}

// A last use in the future means that the clock was set back.
func TestUsedInTheFuture(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		s := open(store.Options{Now: clk.now})
		tenants(t, s, "acme")
		b := testSandbox("one")
		b.Idle, b.State = store.Idle{After: time.Minute, Action: "stop"}, sandbox.Running
		mustCreate(t, s, "acme", b)
		idle := func() (n int) {
			ok(t, operate(s, func(ctx context.Context, o *store.Operator) error {
				sandboxes, err := o.Idle(ctx, "n1", 10)
				n = len(sandboxes)
				return err
			}))
			return n
		}
		touch := func(at time.Time) {
			ok(t, s.Update(t.Context(), func(tx *store.Tx) error { return tx.Sandboxes().Touch(t.Context(), "acme", b.ID, at) }))
		}
		if idle() != 0 {
			t.Error("it was used just now")
		}
		clk.advance(-time.Hour)
		if idle() != 1 {
			t.Error("nobody learns that its last use is to come")
		}
		touch(clk.now())
		if idle() != 0 {
			t.Error("its time does not begin anew")
		}
		touch(clk.now().Add(-time.Hour)) // earlier than the recorded use
		clk.advance(59 * time.Second)
		if idle() != 0 {
			t.Error("too early")
		}
		clk.advance(time.Second)
		if idle() != 1 {
			t.Error("never idle")
		}
	})
}
