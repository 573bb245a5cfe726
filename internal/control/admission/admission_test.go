package admission_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/sandbox"
)

const gib = 1 << 30

func plenty() (free, total int64) { return 20 * gib, 24 * gib }

// Tenants take turns, so one with many requests does not block the others.
func TestTenantsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Config{Slots: 2, Waiting: 40, Total: 100, Patience: time.Hour, Memory: plenty})
		order := make(chan string, 100)
		work := func(tenant string) {
			leave, err := g.Enter(t.Context(), tenant)
			if err != nil {
				t.Error(err)
				return
			}
			order <- tenant
			time.Sleep(time.Second)
			leave()
		}
		for range 30 {
			go work("greedy")
		}
		synctest.Wait()
		for range 3 {
			go work("modest")
		}
		synctest.Wait()
		if running, waiting := g.Stats(); running != 2 || waiting != 31 {
			t.Errorf("%d run and %d wait", running, waiting)
		}
		time.Sleep(time.Minute)
		last, n := 0, 0
		for range 33 {
			if n++; <-order == "modest" {
				last = n
			}
		}
		if last > 2+2*3 {
			t.Errorf("the last of the modest tenant was the %dth: want it among the first 8", last)
		}
		if running, waiting := g.Stats(); running != 0 || waiting != 0 {
			t.Errorf("afterwards %d run and %d wait", running, waiting)
		}
	})
}

// Requests beyond the limit are refused at once, and those that wait too long
// are refused with a retry time. Their places in the queue are freed.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Config{Slots: 1, Waiting: 2, Total: 3, Patience: 10 * time.Second, Memory: plenty})
		leave, err := g.Enter(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		late := make(chan error, 3)
		canceled, cancel := context.WithCancel(t.Context())
		for _, w := range []struct {
			ctx    context.Context
			tenant string
		}{{t.Context(), "a"}, {canceled, "a"}, {t.Context(), "b"}} {
			go func() { _, err := g.Enter(w.ctx, w.tenant); late <- err }()
			synctest.Wait()
		}
		for _, tenant := range []string{"a", "c"} { // the tenant's own limit, and the total
			_, err := g.Enter(t.Context(), tenant)
			wantRefused(t, err)
		}
		cancel()
		if err := <-late; !errors.Is(err, context.Canceled) {
			t.Errorf("who went away is told %v", err)
		}
		time.Sleep(11 * time.Second)
		for range 2 {
			wantRefused(t, <-late)
		}
		leave()
		leave() // gives it back once
		if running, waiting := g.Stats(); running != 0 || waiting != 0 {
			t.Errorf("afterwards %d run and %d wait", running, waiting)
		}
	})
}

func wantRefused(t *testing.T, err error) {
	t.Helper()
	after, ok := admission.RetryAfter(err)
	if sandbox.CodeOf(err) != sandbox.CodeExhausted || !ok || after < time.Second || after > 15*time.Second {
		t.Errorf("it is told %v, and to try again after %v", err, after)
	}
}

// With little free memory, requests are refused. Creations in progress count
// with their future memory.
func TestMemory(t *testing.T) {
	for _, tc := range []struct {
		free, total int64
		admitted    int
	}{
		{20 * gib, 24 * gib, 8},
		{gib + 130<<20, 24 * gib, 2},
		{gib, 24 * gib, 0},
		{gib, gib, 8},
		{400 << 20, gib, 2},
		{100 << 20, gib, 0},
		{0, 0, 8}, // it is not known
	} {
		t.Run(fmt.Sprintf("%dM of %dM", tc.free>>20, tc.total>>20), func(t *testing.T) {
			g := admission.New(admission.Config{Slots: 8, Memory: func() (int64, int64) { return tc.free, tc.total }})
			n := 0
			for ; n < 8; n++ {
				if _, err := g.Enter(t.Context(), "a"); err != nil {
					wantRefused(t, err)
					break
				}
			}
			if n != tc.admitted {
				t.Errorf("%d were admitted, want %d", n, tc.admitted)
			}
			if running, _ := g.Stats(); running != n {
				t.Errorf("what was refused holds a slot: %d of %d", running, n)
			}
		})
	}
}
