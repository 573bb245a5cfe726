package daemon_test

import (
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// withoutSnapshots has a daemon make sandboxes with a provider that takes none.
func withoutSnapshots(m *daemontest.Machine, o *daemon.Options) {
	o.Providers = []providerset.Entry{{Name: "fake", Open: func(providerset.Host) (driver.Provider, error) {
		return fake.New(fake.Options{World: m.World, Fault: m.Fault, Limited: true}), nil
	}}}
}

// keptTars lists what the blob store has of the set of an archive.
func keptTars(t *testing.T, m *daemontest.Machine, a *durable.Archive) []archive.Kept {
	t.Helper()
	blobs, err := blob.Open(t.Context(), "dir:"+filepath.Join(m.Dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := worktree.Key(filepath.Join(m.Dir, "workspace.key"))
	if err != nil {
		t.Fatal(err)
	}
	set, _, _ := strings.Cut(a.Ref, ".")
	all, err := archive.New(blobs, key).List(t.Context(), archive.Set{ID: set, Encrypted: true})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// RB-44, RB-56: a session of a provider without snapshots is saved as an archive
// of the files below /workspace, from which it is rebuilt. RB-44.
func TestFilesAreArchivedWithoutSnapshots(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { withoutSnapshots(m, o); shortGrace(o) })
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{Env: map[string]string{"TOKEN": "sesame"}}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "mkdir -p /workspace/sub; echo kept > /workspace/sub/note; echo other > /outside")
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilCold(t, c, "agent")
	if all := sandboxes(t, c); len(all) != 0 {
		t.Errorf("the sandboxes %+v are left, want none", all)
	}
	if err := d.Close(); err != nil { // the archive needs no daemon
		t.Fatal(err)
	}
	d = m.Start(t, func(o *daemon.Options) { withoutSnapshots(m, o) })
	c = daemontest.Client(t, d)
	s, err := c.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := s.Receipt()
	if r.Outcome != durable.OutcomeRebuilt || r.From.Archive == nil || r.From.Archive.Kind != "tar" || !slices.Contains(r.Lost, durable.LostFiles) {
		t.Fatalf("the receipt is %+v, want it rebuilt from a tar, with files lost", r)
	}
	if got := runShell(t, s, "cat /workspace/sub/note; echo $TOKEN; ls /outside || true"); got != "kept\nsesame" {
		t.Errorf("it has %q", got)
	}
}

// RB-45, RB-46: saving again removes what the save before the last kept, and
// removing the session the rest. RB-45.
func TestReplacedArchivesAreRemoved(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) { withoutSnapshots(m, o) }))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	var last *durable.Archive
	for i, text := range []string{"one", "two", "three"} {
		runShell(t, s, "mkdir -p /workspace; echo "+text+" > /workspace/note")
		saved, err := s.Save(t.Context())
		if err != nil || saved.Archive == nil || saved.Archive.Kind != "tar" || last != nil && saved.Archive.Ref == last.Ref {
			t.Fatalf("saved %+v after %+v, %v; want another tar", saved, last, err)
		}
		last = saved.Archive
		if all := keptTars(t, m, last); len(all) != min(i+1, 2) {
			t.Errorf("after saving %s there are %+v, want the last two archives", text, all)
		}
	}

	// It is enough to rebuild the session from, once and again.
	e, err := s.Envelope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.Sandbox, e.State = "", nil
	for _, tt := range []struct {
		name   string
		change func(a *durable.Archive)
		want   sandbox.Code
	}{
		{"as it is", func(*durable.Archive) {}, ""},
		{"another one", func(a *durable.Archive) { a.Hash = "sha256:" + strings.Repeat("0", 64) }, sandbox.CodeInvalid},
	} {
		a := *last
		tt.change(&a)
		changed := e
		changed.Archive = &a
		copied, err := c.Sessions().Resume(t.Context(), changed, atoll.SessionOptions{Name: "copy"})
		if tt.want != "" {
			if sandbox.CodeOf(err) != tt.want {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
			}
			if all := sandboxes(t, c); len(all) != 1 {
				t.Errorf("%s: there are %d sandboxes, want that of the session", tt.name, len(all))
			}
			continue
		}
		if err != nil || copied.Receipt().Outcome != durable.OutcomeRebuilt {
			t.Fatalf("%s: %+v, %v; want it rebuilt", tt.name, copied, err)
		}
		if got := runShell(t, copied, "cat /workspace/note"); got != "three" {
			t.Errorf("%s: the copy has %q, want %q", tt.name, got, "three")
		}
		if err := copied.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := keptTars(t, m, last); len(all) != 0 {
		t.Errorf("removing the session left the archives %+v", all)
	}
}

// RB-56: a sandbox that cannot be archived stays until it can be. RB-56.
func TestAFailedArchiveKeepsTheSandbox(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	var broken atomic.Bool
	var failed atomic.Int32
	m.Fault = func(op string) error {
		if broken.Load() && op == "archive.export" {
			failed.Add(1)
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the connection broke"}
		}
		return nil
	}
	c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) { withoutSnapshots(m, o); shortGrace(o) }))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "mkdir -p /workspace; echo kept > /workspace/note")
	first := s.Receipt().Sandbox
	broken.Store(true)
	_, err := s.Save(t.Context())
	wantCode(t, err, sandbox.CodeUnavailable)
	saves := failed.Load()
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two sweeps fail", func() bool { return failed.Load() >= saves+2 })
	if all := sandboxes(t, c); len(all) != 1 || all[0].ID != first {
		t.Fatalf("the sandboxes are %+v, want %s, which could not be saved", all, first)
	}
	broken.Store(false)
	untilCold(t, c, "agent")
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := runShell(t, s, "cat /workspace/note"); got != "kept" {
		t.Errorf("it has %q", got)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen that %s", what)
		}
	}
}

// RB-45: after a move, a session is rebuilt from the archive before the move,
// of any kind, until it is saved again. Then that archive is removed. RB-45.
func TestArchivesAfterMoves(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	worlds := map[string]*fake.World{"whole": {}, "bare": {}}
	entry := func(name string, snapshots bool) providerset.Entry {
		return providerset.Entry{Name: name, Open: func(h providerset.Host) (driver.Provider, error) {
			opts := fake.Options{World: worlds[name], Binding: name, Limited: true}
			if snapshots {
				opts.SnapshotDir = h.Snapshots
			}
			return fake.New(opts), nil
		}}
	}
	c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) { o.Providers = []providerset.Entry{entry("whole", true), entry("bare", false)} }))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	save := func(kind string) *durable.Archive {
		t.Helper()
		saved, err := s.Save(t.Context())
		if err != nil || saved.Archive == nil || saved.Archive.Kind != kind {
			t.Fatalf("saved %+v, %v; want a %s", saved, err, kind)
		}
		return saved.Archive
	}
	snapshots := func() (n int) {
		t.Helper()
		for _, err := range c.Snapshots(t.Context(), nil) {
			if n++; err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	end := func(provider string) {
		t.Helper()
		endOutside(t, &daemontest.Machine{World: worlds[provider]}, s.Receipt().Sandbox)
		if r, err := s.Acquire(t.Context()); err != nil || r.Outcome != durable.OutcomeRebuilt || !slices.Contains(r.Lost, durable.LostChanges) {
			t.Fatalf("after its sandbox ended: %+v, %v; want it rebuilt, and that changes are lost", r, err)
		}
	}
	want := func(text, provider string) {
		t.Helper()
		if got := runShell(t, s, "cat /workspace/note"); got != text {
			t.Errorf("it has %q, want %q", got, text)
		}
		if all := sandboxes(t, c); len(all) != 1 || all[0].Provider != provider {
			t.Errorf("there are %+v, want one of %s", all, provider)
		}
	}

	runShell(t, s, "mkdir -p /workspace; echo one > /workspace/note")
	save("snapshot")
	mustSwap(t, s, "bare")
	runShell(t, s, "echo two > /workspace/note")
	if n := snapshots(); n != 1 {
		t.Errorf("after the move there are %d snapshots, want what was saved last", n)
	}
	s = attached(t, c, "agent")
	end("bare")
	want("one", "whole")

	mustSwap(t, s, "bare")
	runShell(t, s, "echo three > /workspace/note")
	tar := save("tar")
	if n := snapshots(); n != 1 || len(keptTars(t, m, tar)) != 1 {
		t.Errorf("after saving there are %d snapshots and %+v, want one archive and the snapshot before it", n, keptTars(t, m, tar))
	}
	s = attached(t, c, "agent")
	end("bare")
	want("three", "bare")

	mustSwap(t, s, "whole")
	if len(keptTars(t, m, tar)) != 1 {
		t.Error("the move removed what was saved")
	}
	save("snapshot")
	if n := snapshots(); n != 1 || len(keptTars(t, m, tar)) != 1 {
		t.Errorf("after saving there are %d snapshots and %+v, want one snapshot and the archive before it", n, keptTars(t, m, tar))
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := snapshots(); n != 0 || len(sandboxes(t, c)) != 0 {
		t.Errorf("removing the session left %d snapshots and %+v", n, sandboxes(t, c))
	}
}

// attached acquires a session again, so that the handle has the present receipt.
func attached(t *testing.T, c *atoll.Client, name string) *atoll.Session {
	t.Helper()
	s, err := c.Sessions().Attach(t.Context(), name, atoll.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
