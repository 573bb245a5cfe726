package daemon_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// A sandbox that was removed can be removed again, by id and by name, and
// neither is an error in the daemon's log.
func TestRemoveTwice(t *testing.T) {
	var logged bytes.Buffer
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
	c := daemontest.Client(t, d)
	s := create(t, c, sandbox.Spec{Name: "one"})
	for _, ref := range []string{"one", "one", string(s.ID())} {
		if err := c.Remove(t.Context(), ref); err != nil {
			t.Errorf("removing %s: %v", ref, err)
		}
	}
	wantCode(t, c.Remove(t.Context(), "never"), sandbox.CodeNotFound)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(logged.String(), "level=ERROR") {
		t.Errorf("the daemon logged errors:\n%s", &logged)
	}
}

// Events carry the labels that their sandbox had at the time.
func TestEventsHaveLabels(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	s := create(t, c, sandbox.Spec{Name: "one", Labels: map[string]string{"team": "red"}})
	shell(t, s, "true")
	blue := "blue"
	if _, err := s.Update(t.Context(), sandbox.Change{Labels: map[string]*string{"team": &blue}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	teams := map[string]string{} // of the first event of each operation
	for e, err := range c.Events(t.Context(), sandbox.EventQuery{Sandbox: s.ID()}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, seen := teams[e.Op]; !seen {
			teams[e.Op] = e.Labels["team"]
		}
	}
	want := map[string]string{"sandbox.create": "red", "process.exec": "red", "sandbox.update": "blue", "sandbox.destroy": "blue"}
	for op, team := range want {
		if teams[op] != team {
			t.Errorf("%s has team=%q, want %q", op, teams[op], team)
		}
	}
	if report, err := c.Admin().VerifyAudit(t.Context()); err != nil || !report.Sound {
		t.Errorf("the log is not sound: %+v %v", report, err)
	}
}

// A sandbox made from a snapshot has the environment of the one it was taken
// of; what the request gives goes first.
func TestSnapshotKeepsEnvironment(t *testing.T) {
	const canary = "canary-7f3a9b"
	m := daemontest.New(t)
	first := m.Start(t, nil)
	c := daemontest.Client(t, first)
	s := create(t, c, sandbox.Spec{Name: "one", Env: map[string]string{"A": canary, "B": "b"}})
	snap, err := s.Snapshot(t.Context(), durable.SnapshotRequest{Name: "snap"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	findNowhere(t, m.Dir, canary)
	if err := first.Close(); err != nil { // it outlives the sandbox, and the daemon
		t.Fatal(err)
	}
	c = daemontest.Client(t, m.Start(t, nil))
	two := create(t, c, sandbox.Spec{Name: "two", Snapshot: "snap", Env: map[string]string{"B": "own"}})
	if out := shell(t, two, "echo $A $B"); out != canary+" own\n" {
		t.Errorf("its environment is %q", out)
	}
	if _, err := two.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := shell(t, two, "echo $A $B"); out != canary+" own\n" {
		t.Errorf("after a stop its environment is %q", out)
	}
	sealed := m.Dir + "/environments/" + snap.ID + ".sealed"
	if err := os.Remove(sealed); err != nil {
		t.Fatal(err)
	}
	_, err = c.Create(t.Context(), sandbox.Spec{Snapshot: "snap", Env: map[string]string{"B": "own"}}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	if err == nil || !strings.Contains(err.Error(), "variables A") {
		t.Errorf("the error does not name the variable: %v", err)
	}
	if _, err := c.Create(t.Context(), sandbox.Spec{Snapshot: "snap", Env: map[string]string{"A": "new", "B": "own"}}, atoll.CreateOptions{}); err != nil {
		t.Errorf("with all variables given: %v", err)
	}
}

// A repeated request whose sandbox was removed says so, and one whose sandbox
// could not be made makes it.
func TestRepeatedCreate(t *testing.T) {
	var fail atomic.Bool
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) {
		o.Fault = func(point string) error {
			if point == "create.recorded" && fail.Load() {
				return errors.New("killed")
			}
			return nil
		}
	})
	c := daemontest.Client(t, d)
	opts := atoll.CreateOptions{IdempotencyKey: "one"}
	spec := sandbox.Spec{Name: "one", Image: "host"}
	s, err := c.Create(t.Context(), spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = c.Create(t.Context(), spec, opts)
	wantCode(t, err, sandbox.CodeGone)

	opts.IdempotencyKey = "two"
	fail.Store(true)
	if _, err := c.Create(t.Context(), spec, opts); err == nil {
		t.Fatal("nothing failed")
	}
	fail.Store(false)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	c = daemontest.Client(t, m.Start(t, nil)) // it finds that nothing was made
	s, err = c.Create(t.Context(), spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Create(t.Context(), spec, opts); err != nil || again.ID() != s.ID() {
		t.Errorf("the request once more: %v %v, want %v", again, err, s.ID())
	}
}

// A daemon that ends in the middle of a fork leaves no copy, and the same
// request makes all of them. Once they are made, it returns them.
func TestForkIsAllOrNothing(t *testing.T) {
	for _, point := range []string{"fork.recorded", "fork.made"} {
		t.Run(point, func(t *testing.T) {
			m := daemontest.New(t)
			d := m.Start(t, func(o *daemon.Options) {
				o.Fault = func(at string) error {
					if at == point {
						return errors.New("killed")
					}
					return nil
				}
			})
			c := daemontest.Client(t, d)
			s := create(t, c, sandbox.Spec{Name: "parent"})
			req := durable.ForkRequest{Count: 3, Prefix: "copy", IdempotencyKey: "f"}
			if _, err := s.Fork(t.Context(), req); err == nil {
				t.Fatal("nothing failed")
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			c = daemontest.Client(t, m.Start(t, nil))
			for b, err := range c.List(t.Context(), atoll.ListOptions{}) {
				if err != nil || b.Name != "parent" {
					t.Errorf("%v exists: %v", b, err)
				}
			}
			s, err := c.Get(t.Context(), "parent")
			if err != nil {
				t.Fatal(err)
			}
			var ids [2][]sandbox.ID
			for i := range ids {
				copies, err := s.Fork(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range copies {
					ids[i] = append(ids[i], b.ID())
				}
			}
			if len(ids[0]) != 3 || !slices.Equal(ids[0], ids[1]) {
				t.Errorf("copies %v, and once more %v", ids[0], ids[1])
			}
			req.Count = 2
			_, err = s.Fork(t.Context(), req)
			wantCode(t, err, sandbox.CodeConflict)
		})
	}
}
