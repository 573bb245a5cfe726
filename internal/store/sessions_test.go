package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func withTenant(t *testing.T, s *store.Store) {
	t.Helper()
	if _, err := store.Write(t.Context(), s, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Ensure(t.Context(), "acme") }); err != nil {
		t.Fatal(err)
	}
}

func applyLease(ctx context.Context, s *store.Store, op lease.Op) (l lease.Lease, effect lease.Effect, err error) {
	err = s.Update(ctx, func(tx *store.Tx) (err error) {
		l, effect, err = tx.Sessions().ApplyLease(ctx, "acme", "g", op, lease.Default(), map[string]string{"team": "a"})
		return err
	})
	return l, effect, err
}

func TestSessions(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		withTenant(t, s)
		ctx := t.Context()
		want := store.Session{Tenant: "acme", Prior: &durable.Envelope{Backend: "docker"}, Session: durable.Session{
			ID: "se-1", Name: "agent", Group: "g", Spec: sandbox.Spec{Image: "debian"}, Labels: map[string]string{"team": "a"},
		}}
		for i, code := range []sandbox.Code{"", sandbox.CodeAlreadyExists} {
			err := s.Update(ctx, func(tx *store.Tx) error { _, err := tx.Sessions().Create(ctx, want); return err })
			if sandbox.CodeOf(err) != code {
				t.Fatalf("creation %d: %v", i, err)
			}
		}
		for _, ref := range []string{"se-1", "agent"} {
			got, err := store.Read(ctx, s, func(tx *store.Tx) (store.Session, error) { return tx.Sessions().Get(ctx, "acme", ref) })
			if err != nil || got.Spec.Image != "debian" || got.Prior == nil || got.Prior.Backend != "docker" || got.Labels["team"] != "a" || got.Created.IsZero() {
				t.Errorf("%s: %+v, %v", ref, got, err)
			}
		}
		want.Prior, want.Receipt = nil, &durable.Receipt{Outcome: durable.OutcomeCreated}
		if err := s.Update(ctx, func(tx *store.Tx) error { return tx.Sessions().Update(ctx, want) }); err != nil {
			t.Fatal(err)
		}
		all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Session, error) { return tx.Sessions().List(ctx, "acme") })
		if err != nil || len(all) != 1 || all[0].Prior != nil || all[0].Receipt.Outcome != durable.OutcomeCreated {
			t.Errorf("%+v, %v", all, err)
		}
		_, err = store.Read(ctx, s, func(tx *store.Tx) (store.Session, error) { return tx.Sessions().Get(ctx, "other", "agent") })
		if sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("another tenant: %v", err)
		}
		if err := s.Update(ctx, func(tx *store.Tx) error { return tx.Sessions().Remove(ctx, "acme", "se-1") }); err != nil {
			t.Error(err)
		}
	})
}

// Fifty callers acquire at once, on two stores of one database. One becomes the spawner (RB-53).
func TestLeases(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		stores := []*store.Store{open(store.Options{}), open(store.Options{})}
		withTenant(t, stores[0])
		ctx := t.Context()
		var mu sync.Mutex
		roles := map[lease.Role]int{}
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				_, effect, err := applyLease(ctx, stores[i%2], lease.Acquire{Kind: lease.Turn, ID: fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				roles[effect.Role]++
				mu.Unlock()
			})
		}
		wg.Wait()
		l, err := store.Read(ctx, stores[1], func(tx *store.Tx) (lease.Lease, error) { return tx.Sessions().Lease(ctx, "acme", "g") })
		if err != nil || roles[lease.Spawner] != 1 || roles[lease.Attached] != 49 || len(l.Holders) != 50 {
			t.Fatalf("%v, %d holders, %v; want 1 spawner, 49 attached, 50 holders", roles, len(l.Holders), err)
		}
		if _, effect, err := applyLease(ctx, stores[0], lease.Acquire{Kind: lease.Turn, ID: "7"}); err != nil || effect.Role != lease.Attached {
			t.Errorf("acquiring again: %+v, %v", effect, err)
		}
		// A stale epoch changes nothing.
		if _, effect, err := applyLease(ctx, stores[0], lease.Commit{Epoch: 5, Attempt: 1}); err != nil || effect.Done {
			t.Errorf("a stale commit: %+v, %v", effect, err)
		}
		l, effect, err := applyLease(ctx, stores[0], lease.Commit{Epoch: 0, Attempt: 1, Provider: "p", Sandbox: "sb", Ref: json.RawMessage(`{}`)})
		if err != nil || !effect.Done || l.Epoch != 1 {
			t.Errorf("the commit: %+v, %+v, %v", l, effect, err)
		}
		keys, err := store.Read(ctx, stores[1], func(tx *store.Tx) ([]store.LeaseKey, error) {
			return tx.Operator().Leases(ctx, time.Now().Add(time.Hour))
		})
		if err != nil || len(keys) != 1 || keys[0] != (store.LeaseKey{Tenant: "acme", Group: "g"}) {
			t.Errorf("%v, %v", keys, err)
		}
	})
}

// RB-59.
func TestWarmTime(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		now := time.Date(2026, 1, 2, 3, 30, 0, 0, time.UTC)
		s := open(store.Options{Now: func() time.Time { return now }})
		withTenant(t, s)
		for _, op := range []lease.Op{lease.Acquire{Kind: lease.Turn, ID: "a"}, lease.Commit{Epoch: 0, Attempt: 1, Provider: "p", Sandbox: "sb"}} {
			if _, _, err := applyLease(t.Context(), s, op); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 { // the same time is counted once
			now = now.Add(10 * time.Minute)
			for range 2 {
				if _, _, err := applyLease(t.Context(), s, lease.Meter{Epoch: 1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		used, err := store.Read(t.Context(), s, func(tx *store.Tx) ([]store.WarmTime, error) {
			return tx.Sessions().WarmTimes(t.Context(), "acme", now.Add(-24*time.Hour), now.Add(time.Hour))
		})
		total := time.Duration(0)
		for _, u := range used {
			total += u.Warm
			if u.Labels["team"] != "a" || u.Provider != "p" {
				t.Errorf("%+v", u)
			}
		}
		if err != nil || total != 30*time.Minute {
			t.Errorf("%v in %+v, %v", total, used, err)
		}
		for since, want := range map[time.Duration]time.Duration{-24 * time.Hour: total, time.Hour: 0} {
			got, err := store.Read(t.Context(), s, func(tx *store.Tx) (time.Duration, error) {
				return tx.Sessions().Warm(t.Context(), "acme", now.Add(since))
			})
			if err != nil || got != want {
				t.Errorf("since %v: %v, %v, want %v", since, got, err, want)
			}
		}
	})
}
