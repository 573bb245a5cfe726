package store_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
)

// Daemons whose machines have wrong clocks agree on the time.
func TestServerTime(t *testing.T) {
	address := storetest.Postgres(t)
	var jump atomic.Int64
	open := func(skew time.Duration) *store.Store {
		s, err := store.Open(t.Context(), address, store.Options{Local: func() time.Time {
			now := time.Now().Add(skew)
			if by := jump.Load(); by != 0 { // it slept: only the wall clock went on
				now = now.Round(0).Add(time.Duration(by))
			}
			return now
		}})
		ok(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	early, late := open(-time.Hour), open(time.Hour)
	agree := func(when string) {
		t.Helper()
		for _, s := range []*store.Store{early, late} {
			if off := time.Since(s.Now()).Abs(); off > time.Minute { // the server is this machine
				t.Errorf("%s: its time is %s off", when, off)
			}
		}
	}
	agree("opened")

	// A holder that sends heartbeats through one is not ended by the other.
	ok(t, early.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Tenants().Ensure(t.Context(), "acme")
		return err
	}))
	apply := func(s *store.Store, op lease.Op) lease.Lease {
		t.Helper()
		l, err := store.Write(t.Context(), s, func(tx *store.Tx) (lease.Lease, error) {
			l, _, err := tx.Sessions().ApplyLease(t.Context(), "acme", "g", op, lease.Default(), nil)
			return l, err
		})
		ok(t, err)
		return l
	}
	apply(early, lease.Acquire{Kind: lease.Operator, ID: "o"})
	if l := apply(late, lease.Tick{}); l.State != lease.Warming || len(l.Holders) != 1 {
		t.Errorf("the other daemon ended it: %+v", l)
	}

	jump.Store(int64(30 * time.Minute))
	for _, s := range []*store.Store{early, late} {
		ok(t, s.Ping(context.Background()))
	}
	agree("after a sleep")
}
