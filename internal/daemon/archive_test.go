package daemon_test

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// passing returns a fault that does no harm, and closes passed when a point is
// reached.
func passing(point string) (fault func(string) error, passed <-chan struct{}) {
	c := make(chan struct{}, 1000)
	return func(at string) error {
		if at == point {
			c <- struct{}{}
		}
		return nil
	}, c
}

// packs lists the packs of snapshots in a blob directory.
func packs(t *testing.T, blobs string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(blobs, "snapshots"), func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // removed meanwhile
		}
		if err == nil && d.Type().IsRegular() && strings.Contains(path, "/packs/") {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// saved takes a snapshot and waits until it is in the blob store.
func saved(t *testing.T, s *atoll.Sandbox, name string) durable.Snapshot {
	t.Helper()
	snap, err := s.Snapshot(t.Context(), durable.SnapshotRequest{Name: name, Save: true})
	if err != nil || !snap.Saved || snap.Stored == 0 || snap.Problem != "" {
		t.Fatalf("the snapshot is %+v, %v; want it saved, without a problem", snap, err)
	}
	return snap
}

// lose removes a machine's own copy of a snapshot.
func lose(t *testing.T, m *daemontest.Machine, id string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(m.Dir, "snapshots", id)); err != nil {
		t.Fatal(err)
	}
}

// Two daemons that share a database, a blob store and a key create sandboxes
// from each other's snapshots. A fetched copy survives a restart. Removing the
// snapshot removes all copies.
func TestSnapshotElsewhere(t *testing.T) {
	address, blobs := storetest.Postgres(t), t.TempDir()
	m1, m2 := daemontest.New(t), daemontest.New(t)
	fault, swept := passing("sweep.done")
	with := func(o *daemon.Options) { o.Store, o.Blobs, o.Fault = address, blobs, fault }
	c1 := daemontest.Client(t, m1.Start(t, with))
	key, err := os.ReadFile(filepath.Join(m1.Dir, "workspace.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m2.Dir, "workspace.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	d2 := m2.Start(t, with)

	s := create(t, c1, sandbox.Spec{Name: "one"})
	shell(t, s, "echo far > /f")
	snap := saved(t, s, "before")
	if !snap.Encrypted {
		t.Errorf("encrypted is %v, want true", snap.Encrypted)
	}
	if out := shell(t, create(t, daemontest.Client(t, d2), sandbox.Spec{Name: "two", Snapshot: "before"}), "cat /f"); out != "far\n" {
		t.Errorf("the file has %q, want %q", out, "far\n")
	}
	if err := d2.Close(); err != nil {
		t.Fatal(err)
	}
	d2 = m2.Start(t, with) // it reconciles
	copied := filepath.Join(m2.Dir, "snapshots", snap.ID)
	if _, err := os.Stat(copied); err != nil {
		t.Errorf("the error about the copy is %v, want it there", err)
	}
	lose(t, m1, snap.ID)
	if out := shell(t, create(t, c1, sandbox.Spec{Snapshot: "before"}), "cat /f"); out != "far\n" {
		t.Errorf("the file has %q, want %q", out, "far\n")
	}
	if err := daemontest.Client(t, d2).RemoveSnapshot(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	for len(packs(t, blobs)) > 0 {
		<-swept
	}
	if _, err := os.Stat(copied); err == nil {
		t.Error("the copy outlived the snapshot")
	}
}

// A daemon with another key than the one that saved a snapshot returns an error
// and starts nothing.
func TestSnapshotOfAnotherKey(t *testing.T) {
	m := daemontest.New(t)
	first := m.Start(t, nil)
	snap := saved(t, create(t, daemontest.Client(t, first), sandbox.Spec{Name: "one"}), "before")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	lose(t, m, snap.ID)
	if err := os.Remove(filepath.Join(m.Dir, "workspace.key")); err != nil {
		t.Fatal(err)
	}
	if lost, err := daemon.Accept(t.Context(), m.Dir); err != nil || len(lost) != 1 {
		t.Fatalf("the snapshots of another key are %q, %v; want one", lost, err)
	}
	c := daemontest.Client(t, m.Start(t, nil))
	_, err := c.Create(t.Context(), sandbox.Spec{Name: "two", Snapshot: "before"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeDenied)
	if !strings.Contains(err.Error(), "another key") {
		t.Errorf("the error is %v, want one that names another key", err)
	}
	if len(running(t, m)) != 1 {
		t.Errorf("%d sandboxes run, want 1: nothing more was started", len(running(t, m)))
	}
}

// A damaged local copy is fetched again. If the copy in the blob store is
// damaged, too, or from another snapshot, that is detected before anything
// starts.
func TestSnapshotDamage(t *testing.T) {
	truncate := func(path string) error { return os.Truncate(path, 100) }
	flip := func(path string) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// One bit may change nothing: compressed content has more than one form.
		for i := len(data) / 3; i < len(data)/2; i++ {
			data[i] ^= 0xff
		}
		return os.WriteFile(path, data, 0o600)
	}
	for what, damage := range map[string]func(string) error{"truncated": truncate, "changed": flip, "missing": os.Remove} {
		for _, plain := range []bool{false, true} {
			t.Run(what, func(t *testing.T) {
				m := daemontest.New(t)
				c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) { o.PlainSnapshots = plain }))
				s := create(t, c, sandbox.Spec{Name: "one"})
				shell(t, s, "echo whole > /f")
				snap := saved(t, s, "before")
				if snap.Encrypted == plain {
					t.Errorf("encrypted is %v, want %v", snap.Encrypted, !snap.Encrypted)
				}
				local, err := filepath.Glob(filepath.Join(m.Dir, "snapshots", snap.ID, "files", "*"))
				if err != nil || len(local) == 0 {
					t.Fatal(local, err)
				}
				if err := os.Truncate(local[0], 3); err != nil {
					t.Fatal(err)
				}
				if out := shell(t, create(t, c, sandbox.Spec{Snapshot: "before"}), "cat /f"); out != "whole\n" {
					t.Errorf("the file has %q, want %q", out, "whole\n")
				}
				for _, pack := range packs(t, filepath.Join(m.Dir, "blobs")) {
					if err := damage(pack); err != nil {
						t.Fatal(err)
					}
				}
				lose(t, m, snap.ID)
				before := len(running(t, m))
				_, err = c.Create(t.Context(), sandbox.Spec{Snapshot: "before"}, atoll.CreateOptions{})
				wantCode(t, err, sandbox.CodeInvalid)
				if len(running(t, m)) != before {
					t.Errorf("%d sandboxes run, want %d: nothing more was started", len(running(t, m)), before)
				}
			})
		}
	}
}

// An attacker who can write to the blob store replaces one snapshot by another.
// The digest in the database reveals that. Without encryption it is the only
// protection.
func TestAttackSnapshotSwapped(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) { o.PlainSnapshots = true }))
	s := create(t, c, sandbox.Spec{Name: "one"})
	shell(t, s, "echo first > /f")
	saved(t, s, "first")
	shell(t, s, "echo second > /f")
	second := saved(t, s, "second")
	db := openSQL(t, filepath.Join(m.Dir, "atoll.db"))
	if _, err := db.Exec("UPDATE snapshots SET version = (SELECT version FROM snapshots WHERE name = 'first') WHERE name = 'second'"); err != nil {
		t.Fatal(err)
	}
	lose(t, m, second.ID)
	_, err := c.Create(t.Context(), sandbox.Spec{Snapshot: "second"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	if !strings.Contains(err.Error(), "another one is in its place") {
		t.Errorf("the error is %v, want one that says that another one is in its place", err)
	}
}

// If saving, fetching or sweeping is interrupted, the next daemon continues,
// and no garbage is left.
func TestArchiveCrashPoints(t *testing.T) {
	for _, point := range []string{"save.begun", "save.stored", "save.recorded", "fetch.loaded", "snapshot.forgotten", "sweep.begun", "sweep.done"} {
		t.Run(point, func(t *testing.T) {
			m := daemontest.New(t)
			died := make(chan struct{}, 100)
			crash := crashAt(point)
			first := m.Start(t, func(o *daemon.Options) {
				o.Fault = func(at string) error {
					err := crash(at)
					if err != nil {
						died <- struct{}{}
					}
					return err
				}
			})
			c := daemontest.Client(t, first)
			s := create(t, c, sandbox.Spec{Name: "one"})
			shell(t, s, "echo kept > /f")
			snap, err := s.Snapshot(t.Context(), durable.SnapshotRequest{Name: "before", Save: true})
			if err == nil {
				saved(t, s, "going")
				lose(t, m, snap.ID)
				_, err = c.Create(t.Context(), sandbox.Spec{Snapshot: "before"}, atoll.CreateOptions{})
			}
			if err == nil {
				_ = c.RemoveSnapshot(t.Context(), "going") // the point may be in the background
			}
			<-died
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			fault, swept := passing("sweep.done")
			c = daemontest.Client(t, m.Start(t, func(o *daemon.Options) { o.Fault = fault }))
			if out := shell(t, create(t, c, sandbox.Spec{Snapshot: "before"}), "cat /f"); out != "kept\n" {
				t.Errorf("the file has %q, want %q", out, "kept\n")
			}
			agree(t, m, c)
			<-swept // the first round removes what was left
			for s, err := range c.Snapshots(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				if err := c.RemoveSnapshot(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
			}
			for len(packs(t, filepath.Join(m.Dir, "blobs"))) > 0 {
				<-swept
			}
			agree(t, m, c)
		})
	}
}

// native has the snapshots of a service, which cannot be copied.
type native struct {
	driver.Provider
	driver.SnapshotKeeper
}

// The daemon does not try again and again to save snapshots that only the
// service can keep, and does not call it an error.
func TestSnapshotsOfAService(t *testing.T) {
	m := daemontest.New(t)
	var log bytes.Buffer // written by the daemon until it is closed
	d := m.Start(t, func(o *daemon.Options) {
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		o.Providers = []providerset.Entry{{Name: "fake", Open: func(providerset.Host) (driver.Provider, error) {
			p := fake.New(fake.Options{World: m.World, Limited: true, SnapshotDir: filepath.Join(m.Dir, "snapshots")})
			return native{p, p}, nil
		}}}
	})
	c := daemontest.Client(t, d)
	sb := create(t, c, sandbox.Spec{Name: "one"})
	_, err := sb.Snapshot(t.Context(), durable.SnapshotRequest{Name: "asked", Save: true})
	wantCode(t, err, sandbox.CodeUnsupported)
	for _, name := range []string{"kept"} {
		if _, err := sb.Snapshot(t.Context(), durable.SnapshotRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			snap, err := c.GetSnapshot(t.Context(), name)
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("the snapshot is %+v, %v; want it with the problem %q", snap, err, durable.ProblemKept)
			}
			if snap.Problem == durable.ProblemKept {
				break
			}
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("the daemon says the following, want nothing:\n%s", log.String())
	}
}
