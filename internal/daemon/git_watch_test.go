package daemon_test

import (
	"context"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
	"github.com/atoll-run/atoll/sandbox/eventtype"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// hostSession opens a session of the provider host, with a repository, which is in
// dir.
func hostSession(t *testing.T) (d *daemon.Daemon, s *atoll.Session, dir string) {
	t.Helper()
	need.Program(t, "git")
	m := daemontest.New(t)
	m.Host = true
	d = m.Start(t, nil)
	s = openSession(t, daemontest.Client(t, d), sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	t.Cleanup(func() {
		if err := s.Destroy(context.WithoutCancel(t.Context())); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Error(err)
		}
	})
	return d, s, runShell(t, s, "mkdir project && cd project && git init -q -b main . && pwd")
}

// follow returns what waits for the next state of a repository.
func follow(t *testing.T, g atoll.Git) (next func() (coding.GitEvent, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	states, err := g.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pull, stop := iter.Pull2(states)
	t.Cleanup(func() {
		cancel()
		stop()
	})
	return func() (coding.GitEvent, error) {
		e, err, more := pull()
		if !more {
			t.Fatal("the states ended without a reason")
		}
		return e, err
	}
}

// RB-87: what happens in a repository of a session is seen at once by a caller who
// may only read, and ends with the caller's key. RB-87.
func TestGitOfSessionsIsWatched(t *testing.T) {
	d, s, dir := hostSession(t)
	c := daemontest.Client(t, d)
	k, err := c.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read"}})
	ok(t, err)
	mine := follow(t, s.Git(dir))
	first, err := mine()
	if err != nil || !first.IsRepo || first.Head != "main" || first.Dirty || first.Reason != coding.GitStart || first.LeaseEpoch != 1 || first.Revision == 0 {
		t.Fatalf("the first state: %+v, %v", first, err)
	}
	reading := follow(t, atoll.Handle(daemontest.Bearer(t, d, k.Token), s.Receipt().Sandbox).Git(dir))
	if e, err := reading(); err != nil || e.LeaseEpoch != 0 || e.Revision != first.Revision {
		t.Errorf("the first state of another caller: %+v, %v", e, err)
	}
	runShell(t, s, "cd project && touch new")
	for _, next := range []func() (coding.GitEvent, error){mine, reading} {
		if e, err := next(); err != nil || e.Files != 1 || !e.Dirty || e.Reason != coding.GitWatch || e.Revision != first.Revision+1 {
			t.Errorf("a new file: %+v, %v", e, err)
		}
	}
	ok(t, c.Admin().RevokeKey(t.Context(), k.ID))
	if e, err := reading(); sandbox.CodeOf(err) != sandbox.CodeUnauthorized {
		t.Errorf("the key ended: %+v, %v", e, err)
	}
	ok(t, s.Destroy(t.Context()))
	if e, err := mine(); err == nil {
		t.Errorf("the session ended: %+v", e)
	}
}

// RB-87: events of files are numbered, also from one stream to the next. RB-87.
func TestEventsOfFilesAreNumbered(t *testing.T) {
	_, s, dir := hostSession(t)
	last := int64(0)
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		changes, err := s.Files().Watch(ctx, dir, false)
		ok(t, err)
		runShell(t, s, "cd project && touch a && rm a")
		for e, err := range changes {
			ok(t, err)
			if e.Revision <= last || e.LeaseEpoch != 1 {
				t.Errorf("%+v after %d", e, last)
			}
			if last = e.Revision; e.Op == sandbox.OpRemove {
				break
			}
		}
		cancel()
	}
}

// RB-87: commands on terminals have events of their own. RB-87.
func TestEventsOfTerminals(t *testing.T) {
	d, s, dir := hostSession(t)
	c := daemontest.Client(t, d)
	size := &sandbox.WindowSize{Cols: 100, Rows: 40}
	ended, err := s.Exec(t.Context(), sandbox.Command{Args: []string{"/bin/sh", "-c", "exit 3"}, TTY: size, Dir: dir})
	ok(t, err)
	_, err = ended.Wait(t.Context())
	ok(t, err)
	ok(t, ended.Close())
	left, err := s.Exec(t.Context(), sandbox.Command{Args: []string{"sleep", "600"}, TTY: size})
	ok(t, err)
	ok(t, left.Close())
	_, err = s.Run(t.Context(), sandbox.Command{Args: []string{"true"}}, atoll.RunOptions{}) // has no terminal
	ok(t, err)

	type event struct {
		typ, id, program string
		cols, rows       uint16
		dir              string
		reason           sandbox.Reason
	}
	want := []event{
		{eventtype.TerminalExited, ended.Info().ID, "sh", 0, 0, "", sandbox.ReasonExited},
		{eventtype.TerminalExited, left.Info().ID, "sleep", 0, 0, "", sandbox.ReasonOwnerGone},
		{eventtype.TerminalStarted, ended.Info().ID, "sh", 100, 40, dir, ""},
		{eventtype.TerminalStarted, left.Info().ID, "sleep", 100, 40, "", ""},
	}
	var got []event
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		all, err := logged(t, c, eventtype.TerminalStarted, eventtype.TerminalExited)
		ok(t, err)
		got = nil
		for _, e := range all {
			got = append(got, event{e.Type, e.Subject, e.Program, e.Cols, e.Rows, e.Dir, e.Reason})
			if e.Reason == sandbox.ReasonExited && (e.Exit == nil || *e.Exit != 3) {
				t.Errorf("the exit code is missing: %+v", e)
			}
		}
		slices.SortFunc(got, func(a, b event) int { return strings.Compare(a.typ+a.program, b.typ+b.program) })
		if slices.Equal(got, want) {
			return
		}
	}
	t.Errorf("the log has %+v, want %+v", got, want)
}
