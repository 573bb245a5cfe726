package keyed_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/keyed"
)

// One caller at a time has the lock of an id. Locks of other ids are free, and who waits
// can give up.
func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l keyed.Locks[string]
		release, err := l.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := l.Take(t.Context(), "b")
		if err != nil {
			t.Errorf("the error for another id is %v, want none", err)
		}
		other()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Take(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error of who waits for too long is %v, want %v", err, context.DeadlineExceeded)
		}
		var wg sync.WaitGroup
		inside, most, done := 0, 0, 0
		for range 10 {
			wg.Go(func() {
				release, err := l.Take(t.Context(), "a")
				if err != nil {
					t.Errorf("the error of who waits is %v, want none", err)
					return
				}
				inside++ // the lock protects it
				most = max(most, inside)
				time.Sleep(time.Second)
				inside--
				done++
				release()
			})
		}
		synctest.Wait()
		if most != 0 {
			t.Errorf("%d callers have the lock while it is held, want none", most)
		}
		release()
		wg.Wait()
		if most != 1 || done != 10 {
			t.Errorf("%d of 10 callers had the lock, %d at once; want all, one at a time", done, most)
		}
	})
}

// Who waits for an object goes on when it is no longer being created, or gives up.
func TestInflight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f keyed.Inflight[string]
		if f.Has("a") || f.Wait(t.Context(), "a") != nil {
			t.Errorf("has a: %v, want no, and nothing to wait for", f.Has("a"))
		}
		end := f.Begin("a")
		if !f.Has("a") || f.Has("b") {
			t.Errorf("has a: %v, and b: %v; want a alone", f.Has("a"), f.Has("b"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.Wait(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error of who waits for too long is %v, want %v", err, context.DeadlineExceeded)
		}
		waited := make(chan error, 1)
		go func() { waited <- f.Wait(t.Context(), "a") }()
		synctest.Wait()
		select {
		case err := <-waited:
			t.Errorf("the wait ended with %v, want it to wait for the end", err)
		default:
		}
		end()
		synctest.Wait()
		if err := <-waited; err != nil || f.Has("a") {
			t.Errorf("after the end: %v, and has a: %v; want neither", err, f.Has("a"))
		}
	})
}
