package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func setLimits(t *testing.T, s *store.Store, tenant string, l operator.Limits) {
	t.Helper()
	ok(t, s.Update(context.Background(), func(tx *store.Tx) error { return tx.Tenants().SetLimits(context.Background(), tenant, l) }))
}

func usage(t *testing.T, s *store.Store, tenant string) operator.TenantUsage {
	t.Helper()
	u, err := store.Read(context.Background(), s, func(tx *store.Tx) (operator.TenantUsage, error) {
		return tx.Tenants().Usage(context.Background(), tenant)
	})
	ok(t, err)
	return u
}

func sized(name string, cpus float64, memory int64) store.Sandbox {
	b := testSandbox(name)
	b.Resources = sandbox.Resources{CPUs: cpus, Memory: memory, Disk: 10}
	return b
}

// TestQuotaHoldsTogether: two daemons that create at the same time do not
// exceed a limit together.
func TestQuotaHoldsTogether(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		stores := []*store.Store{open(store.Options{}), open(store.Options{})}
		tenants(t, stores[0], "acme", "rival")
		setLimits(t, stores[0], "acme", operator.Limits{Sandboxes: 7, Memory: 500})
		for _, s := range stores { // both have open connections
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { usage(t, s, "acme") })
			}
			wg.Wait()
		}
		start := make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		made := 0
		for i := range 40 {
			wg.Go(func() {
				<-start
				_, _, err := create(stores[i%2], "acme", sized(fmt.Sprint("b", i), 1, 100), store.Create{})
				if err == nil {
					mu.Lock()
					made++
					mu.Unlock()
				} else if sandbox.CodeOf(err) != sandbox.CodeExhausted {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		if u := usage(t, stores[0], "acme"); made != 5 || u.Sandboxes != 5 || u.Memory != 500 {
			t.Errorf("%d made, %+v", made, u)
		}
		mustCreate(t, stores[0], "rival", sized("b", 1, 1000))
	})
}

// TestNoLimitIsMoreThanAny: a tenant with a quota cannot remove the limit of a
// sandbox, or set a negative one.
func TestNoLimitIsMoreThanAny(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		mustCreate(t, s, "acme", sized("a", 1, 100))
		mustCreate(t, s, "acme", sized("free", -3, -300))
		if u := usage(t, s, "acme"); u.CPUs != 1 || u.Memory != 100 || u.Disk != 20 {
			t.Errorf("%+v", u)
		}
		setLimits(t, s, "acme", operator.Limits{CPUs: 2, Memory: 200, Disk: 100})
		for name, change := range map[string]func(*sandbox.Resources){
			"cpus":   func(r *sandbox.Resources) { r.CPUs = -1 },
			"memory": func(r *sandbox.Resources) { r.Memory = -1 },
			"disk":   func(r *sandbox.Resources) { r.Disk = -1 },
		} {
			_, err := update(s, "acme", "id-a", store.Expect{}, func(b *store.Sandbox) { change(&b.Resources) })
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("%s: %v", name, err)
			}
		}
		_, err := update(s, "acme", "id-free", store.Expect{}, func(b *store.Sandbox) { b.Resources.CPUs, b.Resources.Memory = 1, 100 })
		ok(t, err)
		_, err = update(s, "acme", "id-free", store.Expect{}, func(b *store.Sandbox) { b.Resources.CPUs = 1.5 })
		wantCode(t, err, sandbox.CodeExhausted)
	})
}

func TestQuotaFollowsState(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		setLimits(t, s, "acme", operator.Limits{CPUs: 2})
		mustCreate(t, s, "acme", sized("a", 1.5, 100))
		_, _, err := create(s, "acme", sized("b", 1, 100), store.Create{})
		wantCode(t, err, sandbox.CodeExhausted)
		if _, found := quota.RetryAfter(err); !found {
			t.Error("the refusal does not say when to come again")
		}
		_, err = update(s, "acme", "id-a", store.Expect{}, setState(sandbox.Stopped))
		ok(t, err)
		if u := usage(t, s, "acme"); u != (operator.TenantUsage{Sandboxes: 1, Disk: 10}) {
			t.Errorf("a stopped sandbox uses %+v", u)
		}
		mustCreate(t, s, "acme", sized("b", 1, 100))
		_, err = update(s, "acme", "id-a", store.Expect{}, setState(sandbox.Running))
		wantCode(t, err, sandbox.CodeExhausted)
		_, err = update(s, "acme", "id-b", store.Expect{}, func(b *store.Sandbox) { b.Resources.CPUs = 2 })
		ok(t, err)
		_, err = update(s, "acme", "id-b", store.Expect{}, func(b *store.Sandbox) { b.Resources.CPUs = 2.5 })
		wantCode(t, err, sandbox.CodeExhausted)
		_, err = update(s, "acme", "id-b", store.Expect{}, func(b *store.Sandbox) { b.Reason = "still here" })
		ok(t, err)
		// Observed states are recorded regardless of limits.
		_, err = update(s, "acme", "id-a", store.Expect{Observed: true}, setState(sandbox.Running))
		ok(t, err)
		if u := usage(t, s, "acme"); u.CPUs != 3.5 || u.Sandboxes != 2 {
			t.Errorf("in use: %+v", u)
		}
		_, err = update(s, "acme", "id-a", store.Expect{}, setState(sandbox.Gone))
		ok(t, err)
		if u := usage(t, s, "acme"); u != (operator.TenantUsage{Sandboxes: 1, CPUs: 2, Memory: 100, Disk: 10}) {
			t.Errorf("in use: %+v", u)
		}
	})
}

func TestTenantSettings(t *testing.T) {
	ctx := context.Background()
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme", "acme")
		limits := operator.Limits{Sandboxes: 3, ExecRate: 0.5}
		setLimits(t, s, "acme", limits)
		for _, err := range []error{
			s.Update(ctx, func(tx *store.Tx) error { return tx.Tenants().SetLimits(ctx, "nobody", limits) }),
			s.Update(ctx, func(tx *store.Tx) error { return tx.Tenants().Disable(ctx, "nobody", true) }),
			s.View(ctx, func(tx *store.Tx) error { _, err := tx.Tenants().Get(ctx, "nobody"); return err }),
		} {
			wantCode(t, err, sandbox.CodeNotFound)
		}
		wantCode(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Tenants().SetLimits(ctx, "acme", operator.Limits{Disk: -1}) }), sandbox.CodeInvalid)
		ok(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Tenants().Disable(ctx, "acme", true) }))
		_, _, err := create(s, "acme", testSandbox("web"), store.Create{})
		wantCode(t, err, sandbox.CodeDenied)
		all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Tenant, error) { return tx.Operator().Tenants(ctx) })
		ok(t, err)
		if len(all) != 1 || all[0].Limits != limits || all[0].Disabled.IsZero() || all[0].Version != 3 {
			t.Errorf("tenants: %+v", all)
		}
		// A read transaction cannot write.
		err = s.View(ctx, func(tx *store.Tx) error { return tx.Tenants().Disable(ctx, "acme", false) })
		if err == nil {
			t.Error("a view changed the database")
		}
	})
}
