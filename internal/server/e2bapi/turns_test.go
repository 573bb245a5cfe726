package e2bapi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// TestTurnsAreFair checks that the builds of one tenant keep no other waiting.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		var order []string // in which turns came
		ask := func(ctx context.Context, name, tenant string) {
			go func() {
				if turns.take(ctx, tenant) == nil {
					order = append(order, name)
				}
			}()
			synctest.Wait()
		}
		came := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := fmt.Sprint(order); got != fmt.Sprint(want) {
				t.Errorf("turns came as %s, want %s", got, fmt.Sprint(want))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		for _, name := range []string{"a1", "a2", "a3"} {
			ask(t.Context(), name, "a")
		}
		ask(ctx, "a4", "a")
		came("a1", "a2")
		ask(t.Context(), "b1", "b") // although a has all that there are
		ask(t.Context(), "b2", "b")
		came("a1", "a2", "b1")
		turns.done("a")
		came("a1", "a2", "b1") // both have one
		turns.done("a")
		came("a1", "a2", "b1", "a3")
		cancel()
		turns.done("b")
		came("a1", "a2", "b1", "a3", "b2")
		turns.done("a")
		turns.done("b")
		if turns.total != 0 || len(turns.running)+len(turns.waiting) != 0 {
			t.Errorf("something is left: %d, %v, %d", turns.total, turns.running, len(turns.waiting))
		}
	})
}

func TestTurnsAreBounded(t *testing.T) {
	var turns turns
	for i := range maxBuildsOfAll {
		if err := turns.take(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := turns.take(ctx, "one more"); !errors.Is(err, context.Canceled) || len(turns.waiting) != 0 {
		t.Errorf("%v, %d wait", err, len(turns.waiting))
	}
}
