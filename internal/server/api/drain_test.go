package api

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/driver"
)

// heldBack is a process whose output a quota delays until its channel is
// closed.
type heldBack struct {
	driver.Process
	until <-chan struct{}
}

func (h heldBack) Throttled() (now bool, changes int64) {
	select {
	case <-h.until:
		return false, 2
	default:
		return true, 1
	}
}

// Output that a quota has delayed until this moment must still arrive, although
// the timer that ends the wait has seen no output for a long time.
func TestDrainAwaitsWhatWasHeldBack(t *testing.T) {
	for _, pause := range []time.Duration{linger / 2, linger - 1, linger, linger + 1, 3*linger - 1, 3 * linger} {
		synctest.Test(t, func(t *testing.T) {
			until, copied := make(chan struct{}), make(chan struct{}, 2)
			came := false
			go func() {
				time.Sleep(pause)
				close(until)
				time.Sleep(linger / 4)
				came = true
				copied <- struct{}{}
				copied <- struct{}{}
			}()
			if err := drain(t.Context(), heldBack{until: until}, copied, nil, nil); err != nil {
				t.Fatal(err)
			}
			if !came {
				t.Errorf("held back for %s: the rest was not awaited", pause)
			}
			time.Sleep(4 * linger)
		})
	}
}

// drain does not wait long for a stream that stays open if no quota delays it.
func TestDrainGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		close(until)
		began := time.Now()
		if err := drain(t.Context(), heldBack{until: until}, make(chan struct{}), nil, nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != linger {
			t.Errorf("it took %s", took)
		}
	})
}
