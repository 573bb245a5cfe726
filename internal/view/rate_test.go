package view

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A stream carries a burst at once, and then its rate, in each direction by
// itself. The streams of a tenant share another bucket. What waits is counted.
func TestStreamsHaveRates(t *testing.T) {
	const perSecond = 100
	synctest.Test(t, func(t *testing.T) {
		var r rates
		began := time.Now()
		took := func(name string, want time.Duration, n int, b, all buckets) {
			t.Helper()
			began = time.Now()
			if err := r.pass(t.Context(), n, b.down, all.down); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(began).Round(time.Millisecond); got != want {
				t.Errorf("%s: %d bytes took %v, want %v", name, n, got, want)
			}
		}
		one, all := newBuckets(perSecond), r.tenant("acme", perSecond)
		took("the burst", 0, burst*perSecond, one, all)
		took("after it", 500*time.Millisecond, perSecond/2, one, all)
		took("more than a burst at once", 5*time.Second, 5*perSecond, one, all)
		if got, want := r.held, (Held{Bytes: perSecond/2 + 5*perSecond, Time: 5500 * time.Millisecond}); got != want {
			t.Errorf("held up: %+v, want %+v", got, want)
		}
		began = time.Now()
		if err := r.pass(t.Context(), burst*perSecond, one.up, all.up); err != nil || time.Since(began) != 0 {
			t.Errorf("the other direction took %v, %v", time.Since(began), err)
		}
		took("another stream", 0, burst*perSecond, newBuckets(perSecond), all)
		time.Sleep(time.Hour)
		for range ofTenant {
			took("streams of a tenant", 0, burst*perSecond, newBuckets(perSecond), r.tenant("acme", perSecond))
		}
		took("one more of the tenant", burst*time.Second/ofTenant, burst*perSecond, newBuckets(perSecond), r.tenant("acme", perSecond))
		took("one of another tenant", 0, burst*perSecond, newBuckets(perSecond), r.tenant("rival", perSecond))
		time.Sleep(time.Hour)
		r.tenant("rival", perSecond)
		if len(r.tenants) != 1 {
			t.Errorf("%d tenants are remembered, want that which has streams", len(r.tenants))
		}
	})
}

// A stream that ends waits no longer.
func TestStreamsEndWhileTheyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rates
		b := newBuckets(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := r.pass(ctx, 1<<20, b.down); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("it waited %v: %v", time.Since(began), err)
		}
	})
}
