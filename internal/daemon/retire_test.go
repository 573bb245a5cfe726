package daemon_test

import (
	"context"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

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
	e.Sandbox, e.State = "", nil
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
