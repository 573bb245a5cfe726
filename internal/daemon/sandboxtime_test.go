package daemon_test

import (
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/ctxsandbox"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// usedBy returns the time of sandboxes with a value of the label team.
func usedBy(t *testing.T, c *atoll.Client, team string) (total time.Duration) {
	t.Helper()
	all, err := c.Sessions().Usage(t.Context(), "label:team", time.Now().Add(-time.Hour), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		if u.Value == team {
			total += u.Warm
		}
	}
	return total
}

// The usage report has the sandboxes without a session, with the labels of
// ctx.sandbox, too.
func TestSandboxesAreMetered(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	for team, run := range map[string]func(t *testing.T, labels map[string]string){
		"plain": func(t *testing.T, labels map[string]string) {
			sb := create(t, c, sandbox.Spec{Name: "plain", Labels: labels})
			if _, err := sb.Run(t.Context(), sandbox.Command{Shell: "echo ok"}, atoll.RunOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := sb.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"ctx": func(t *testing.T, labels map[string]string) {
			x := ctxsandbox.New(c)
			h, err := x.Create(t.Context(), ctxsandbox.SandboxSpec{Name: "ctx", Labels: labels})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Exec(t.Context(), "echo", []string{"ok"}, 0); err != nil {
				t.Fatal(err)
			}
			if err := x.Remove(t.Context(), "ctx"); err != nil {
				t.Fatal(err)
			}
		},
		"session": func(t *testing.T, labels map[string]string) {
			s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "session", Labels: labels})
			if _, err := s.Run(t.Context(), sandbox.Command{Shell: "echo ok"}, atoll.RunOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := s.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		began := time.Now()
		run(t, map[string]string{"team": team})
		there := time.Since(began)
		if used := usedBy(t, c, team); used <= 0 || used > there { // once, and not more than it can have been
			t.Errorf("%s used %v of %v", team, used, there)
		}
	}
	if used, err := c.Sessions().Usage(t.Context(), "provider", time.Time{}, time.Time{}); err != nil || len(used) != 1 || used[0].Value != "fake" {
		t.Errorf("by provider: %+v, %v", used, err)
	}
}

// Time of a sandbox is neither lost nor counted twice if the daemon dies while
// the sandbox runs, or in the middle of its removal.
func TestSandboxTimeSurvivesCrashes(t *testing.T) {
	for _, point := range []string{"", "destroy.recorded", "destroy.done"} {
		t.Run("at "+point, func(t *testing.T) {
			m := daemontest.New(t)
			first := m.Start(t, func(o *daemon.Options) { o.Fault = crashAt(point) })
			c := daemontest.Client(t, first)
			began := time.Now()
			sb := create(t, c, sandbox.Spec{Name: "one", Labels: map[string]string{"team": "red"}})
			made := time.Now()
			if point != "" {
				wantCode(t, sb.Destroy(t.Context()), sandbox.CodeInternal)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			sure := time.Since(made) // it ran while no daemon did, unless it was removed before
			c = daemontest.Client(t, m.Start(t, nil))
			agree(t, m, c)
			if sb, err := c.Get(t.Context(), "one"); err == nil {
				sure = time.Since(made)
				if err := sb.Destroy(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else if point != "destroy.done" {
				t.Fatal(err)
			}
			most := time.Since(began)
			used := usedBy(t, c, "red")
			if point != "destroy.done" && used < sure.Truncate(time.Millisecond) || used <= 0 || used > most {
				t.Errorf("%v, want from %v to %v", used, sure, most)
			}
			if again := usedBy(t, c, "red"); again != used {
				t.Errorf("it is gone, and its time went from %v to %v", used, again)
			}
		})
	}
}
