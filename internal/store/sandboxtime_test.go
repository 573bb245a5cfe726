package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// ran adds up the time of a tenant's sandboxes by the label team.
func ran(t *testing.T, s *store.Store, from, to time.Time) map[string]time.Duration {
	t.Helper()
	all, err := store.Read(context.Background(), s, func(tx *store.Tx) ([]store.WarmTime, error) {
		return tx.Sandboxes().Times(context.Background(), "acme", from, to)
	})
	ok(t, err)
	sums := map[string]time.Duration{}
	for _, u := range all {
		if u.Warm > 0 {
			sums[u.Labels["team"]] += u.Warm
		}
	}
	return sums
}

// The time of a sandbox counts while it runs, once, in the hours in which it ran,
// with the labels that it had then.
func TestSandboxTime(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock() // at a full hour
		start := clk.now()
		s := open(store.Options{Now: clk.now})
		tenants(t, s, "acme", "other")
		is := func(what string, from, to time.Time, want map[string]time.Duration) {
			t.Helper()
			got := ran(t, s, from, to)
			for _, team := range []string{"red", "blue", ""} {
				if got[team] != want[team] {
					t.Errorf("%s: %q has %v, want %v", what, team, got[team], want[team])
				}
			}
		}
		red := func(name string) store.Sandbox {
			b := testSandbox(name)
			b.Labels = map[string]string{"team": "red"}
			return b
		}
		change := func(name string, f func(*store.Sandbox)) {
			t.Helper()
			_, err := update(s, "acme", sandbox.ID("id-"+name), store.Expect{}, f)
			ok(t, err)
		}
		forever := start.Add(100 * 24 * time.Hour)

		mustCreate(t, s, "acme", red("web"))
		clk.advance(10 * time.Minute) // it is being made
		change("web", setState(sandbox.Running))
		is("just made", start, forever, nil)
		clk.advance(20 * time.Minute) // 0:30
		is("running", start, forever, map[string]time.Duration{"red": 20 * time.Minute})
		change("web", func(b *store.Sandbox) { b.Reason = "another change" })
		clk.advance(4 * time.Hour) // 4:30
		long := map[string]time.Duration{"red": 4*time.Hour + 20*time.Minute}
		is("running for hours", start, forever, long)
		change("web", func(b *store.Sandbox) { b.Labels = map[string]string{"team": "blue"} })
		is("other labels", start, forever, long)
		clk.advance(5 * time.Minute)
		change("web", func(b *store.Sandbox) { b.State = sandbox.Stopped })
		clk.advance(time.Hour)
		change("web", func(b *store.Sandbox) { b.State = sandbox.Running })
		clk.advance(time.Minute)
		change("web", func(b *store.Sandbox) { b.State, b.Rest.Pause = sandbox.Paused, sandbox.PauseDisk })
		clk.advance(time.Minute)
		change("web", func(b *store.Sandbox) { b.State, b.Rest.Pause = sandbox.Gone, "" })
		change("web", func(b *store.Sandbox) { b.Reason = "gone twice" })

		second := red("web") // 5:37, of the same name and labels
		second.ID, second.State = "id-web2", sandbox.Running
		mustCreate(t, s, "acme", second)
		clk.advance(3 * time.Minute)
		change("web2", setState(sandbox.Gone))
		unlabelled := testSandbox("db")
		unlabelled.State = sandbox.Running
		mustCreate(t, s, "acme", unlabelled)
		foreign := red("theirs")
		foreign.State = sandbox.Running
		mustCreate(t, s, "other", foreign)
		held := red("held")
		held.State = sandbox.Running
		_, _, err := create(s, "acme", held, store.Create{OfSession: true})
		ok(t, err)
		clk.advance(2 * time.Minute)
		change("held", setState(sandbox.Gone))
		all := map[string]time.Duration{"red": 4*time.Hour + 23*time.Minute, "blue": 6 * time.Minute, "": 2 * time.Minute}
		is("all", start, forever, all)

		hour := func(n int) time.Time { return start.Add(time.Duration(n) * time.Hour) }
		is("the first hour", hour(0), hour(1), map[string]time.Duration{"red": 50 * time.Minute})
		is("full hours", hour(1), hour(3), map[string]time.Duration{"red": 2 * time.Hour})
		is("rounded", hour(2).Add(time.Minute), hour(2).Add(2*time.Minute), map[string]time.Duration{"red": time.Hour})
		is("the fifth hour", hour(4), hour(5), map[string]time.Duration{"red": 30 * time.Minute, "blue": 5 * time.Minute})
		is("after all", hour(6), forever, nil)

		clk.advance(90 * 24 * time.Hour) // the records are purged, and the time stays
		_, err = store.Write(context.Background(), s, func(tx *store.Tx) (int64, error) {
			return tx.Operator().PurgeGone(context.Background(), clk.now(), 100)
		})
		ok(t, err)
		all[""] += 90 * 24 * time.Hour
		is("purged", start, forever, all)

		clk.advance(-91 * 24 * time.Hour) // the clock was set back: nothing is counted twice, and nothing is negative
		change("db", setState(sandbox.Stopped))
		delete(all, "")
		is("set back", start, forever, all)
	})
}
