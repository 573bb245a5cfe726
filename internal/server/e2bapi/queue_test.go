package e2bapi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// TestBuildQueueIsFair checks that the builds of one tenant do not block another tenant.
func TestBuildQueueIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queue buildQueue
		var order []string // in which builds were admitted
		ask := func(ctx context.Context, name, tenant string) {
			go func() {
				if queue.take(ctx, tenant) == nil {
					order = append(order, name)
				}
			}()
			synctest.Wait()
		}
		came := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := fmt.Sprint(order); got != fmt.Sprint(want) {
				t.Errorf("builds were admitted as %s, want %s", got, fmt.Sprint(want))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		for _, name := range []string{"a1", "a2", "a3"} {
			ask(t.Context(), name, "a")
		}
		ask(ctx, "a4", "a")
		came("a1", "a2")
		ask(t.Context(), "b1", "b") // although a uses all slots
		ask(t.Context(), "b2", "b")
		came("a1", "a2", "b1")
		queue.done("a")
		came("a1", "a2", "b1") // both have a slot
		queue.done("a")
		came("a1", "a2", "b1", "a3")
		cancel()
		queue.done("b")
		came("a1", "a2", "b1", "a3", "b2")
		queue.done("a")
		queue.done("b")
		if queue.total != 0 || len(queue.running)+len(queue.waiting) != 0 {
			t.Errorf("something is left: %d, %v, %d", queue.total, queue.running, len(queue.waiting))
		}
	})
}

func TestTurnsAreBounded(t *testing.T) {
	var queue buildQueue
	for i := range maxBuildsOfAll {
		if err := queue.take(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := queue.take(ctx, "one more"); !errors.Is(err, context.Canceled) || len(queue.waiting) != 0 {
		t.Errorf("%v, %d wait", err, len(queue.waiting))
	}
}
