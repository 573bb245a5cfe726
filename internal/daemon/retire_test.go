package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// at calls a function once, at a fault point.
func at(o *daemon.Options, point string, f func() error) {
	called := make(chan struct{}, 1)
	o.Fault = func(p string) error {
		if p != point {
			return nil
		}
		select {
		case called <- struct{}{}:
			return f()
		default:
			return nil
		}
	}
}

// ledger lists the archives of the default tenant.
func ledger(t *testing.T, m *daemontest.Machine) []store.KeptArchive {
	t.Helper()
	all, err := store.Read(t.Context(), m.Store(t), func(tx *store.Tx) ([]store.KeptArchive, error) {
		return tx.Sessions().Archives(t.Context(), "default", "")
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// archiveSnapshots lists the snapshots that archives are.
func archiveSnapshots(t *testing.T, c *atoll.Client) (names []string) {
	t.Helper()
	for s, err := range c.Snapshots(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, s.Name)
	}
	return names
}

// A session that joins a group while the last session of the group is removed is
// rebuilt from the archive of the group.
func TestJoinDuringRemoval(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	var c *atoll.Client
	var joined *atoll.Session
	c = daemontest.Client(t, m.Start(t, func(o *daemon.Options) {
		at(o, "session.cleared", func() (err error) {
			joined, err = c.Sessions().Create(context.Background(), sandbox.Spec{}, atoll.SessionOptions{Name: "second", Group: "both"})
			return err
		})
	}))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "first", Group: "both"})
	runShell(t, s, "echo kept > /note")
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer joined.Close()
	if got := runShell(t, joined, "cat /note"); got != "kept" {
		t.Errorf("the second session has %q", got)
	}
	if err := joined.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := ledger(t, m); len(all) != 0 {
		t.Errorf("archives are left: %+v", all)
	}
}

// An archive that a reaper publishes while the session is removed is removed with
// it.
func TestPublishDuringRemoval(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	late := durable.Archive{Kind: "snapshot", Ref: "archive-late"}
	c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) {
		at(o, "session.cleared", func() error {
			ctx := context.Background()
			return m.Store(t).Update(ctx, func(tx *store.Tx) error {
				if err := tx.Sessions().RegisterArchive(ctx, "default", "agents", late); err != nil {
					return err
				}
				return tx.Sessions().PublishArchive(ctx, "default", "agents", late.Ref)
			})
		})
	}))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent", Group: "agents"})
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := ledger(t, m); len(all) != 0 {
		t.Errorf("archives are left: %+v", all)
	}
	if all := archiveSnapshots(t, c); len(all) != 0 {
		t.Errorf("snapshots are left: %v", all)
	}
}

// The archive of a removed session stays while another session, which was resumed
// from it, has nothing saved of its own.
func TestResumedSessionKeepsItsArchive(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "first"})
	runShell(t, s, "echo kept > /note")
	saved, err := s.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Envelope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.Box, e.State = "", nil
	copied, err := c.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	endOutside(t, m, copied.Receipt().Sandbox)
	if _, err := copied.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := runShell(t, copied, "cat /note"); got != "kept" {
		t.Errorf("the second session has %q, want %q", got, "kept")
	}

	// It is removed when the other session has an archive of its own.
	own, err := copied.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	later, err := store.Open(t.Context(), m.Dir+"/atoll.db", store.Options{Now: func() time.Time { return time.Now().Add(2 * time.Hour) }})
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	for ref, want := range map[string]bool{saved.Archive.Ref: true, own.Archive.Ref: false} {
		claimed, err := store.Write(t.Context(), later, func(tx *store.Tx) (bool, error) {
			return tx.Sessions().DeleteArchive(t.Context(), "default", ref)
		})
		if err != nil || claimed != want {
			t.Errorf("the archive %s may be removed: %v, %v; want %v", ref, claimed, err, want)
		}
	}
}

// An archive that was given up before it was published is removed, even if the
// ledger no longer has it.
func TestArchiveThatWasGivenUp(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	m.Fault = func(op string) error {
		if op != "snapshot" {
			return nil
		}
		ctx := context.Background()
		return m.Store(t).Update(ctx, func(tx *store.Tx) error {
			all, err := tx.Sessions().Archives(ctx, "default", "")
			for _, k := range all {
				if err == nil {
					err = tx.Sessions().ArchiveDeleted(ctx, "default", k.Archive.Ref, false)
				}
			}
			return err
		})
	}
	c := daemontest.Client(t, m.Start(t, nil))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	_, err := s.Save(t.Context())
	wantCode(t, err, sandbox.CodeNotFound)
	if all := archiveSnapshots(t, c); len(all) != 0 {
		t.Errorf("the snapshots %v are left, want none", all)
	}
}

// A tar archive that is recorded while a sweep runs stays. One that is not is
// removed.
func TestSweepOfTarsDuringSave(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	var ahead atomic.Int64 // of the clock
	var saved durable.Archive
	record := func(f func(ss store.Sessions) error) error {
		return m.Store(t).Update(context.Background(), func(tx *store.Tx) error { return f(tx.Sessions()) })
	}
	forget := func(ss store.Sessions) error {
		return ss.ArchiveDeleted(context.Background(), "default", saved.Ref, false)
	}
	var sweeps int
	stayed := make(chan bool, 1)
	c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) {
		withoutSnapshots(m, o)
		shortGrace(o)
		o.SetNow(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
		o.Fault = func(point string) error {
			if point != "tars.listed" {
				return nil
			}
			switch sweeps++; sweeps {
			case 1: // it is recorded after the archives were listed
				ahead.Add(int64(2 * time.Hour))
				return record(func(ss store.Sessions) error {
					return errors.Join(ss.RegisterArchive(context.Background(), "default", "agents", saved), ss.PublishArchive(context.Background(), "default", "agents", saved.Ref))
				})
			case 2: // the first sweep is over
				stayed <- slices.ContainsFunc(keptTars(t, m, &saved), func(k archive.Kept) bool { return strings.HasSuffix(saved.Ref, fmt.Sprint(".", k.Version)) })
				return record(forget)
			}
			return nil
		}
	}))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent", Group: "agents"})
	runShell(t, s, "mkdir -p /workspace; echo kept > /workspace/note")
	kept, err := s.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context()); err != nil { // saves another one
		t.Fatal(err)
	}
	untilCold(t, c, "agent")
	saved = *kept.Archive
	if err := record(forget); err != nil {
		t.Fatal(err)
	}
	ahead.Add(int64(2 * time.Hour)) // now the archives are old
	if !<-stayed {
		t.Error("the sweep removed an archive that was recorded meanwhile")
	}
	for deadline := time.Now().Add(30 * time.Second); len(keptTars(t, m, &saved)) != 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("an archive that no session needs stays: %+v", keptTars(t, m, &saved))
		}
	}
}
