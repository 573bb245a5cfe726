package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// The current and the previous archive are kept. Others are deleted, and failed
// deletions are retried (RB-46).
func TestLedger(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		s := open(store.Options{Now: func() time.Time { return now }})
		withTenant(t, s)
		ctx := t.Context()
		do := func(code sandbox.Code, f func(ss store.Sessions) error) {
			t.Helper()
			err := s.Update(ctx, func(tx *store.Tx) error { return f(tx.Sessions()) })
			if sandbox.CodeOf(err) != code {
				t.Errorf("%v, want code %q", err, code)
			}
		}
		register := func(ref string) {
			t.Helper()
			do("", func(ss store.Sessions) error {
				return ss.RegisterArchive(ctx, "acme", "g", durable.Archive{Kind: "snapshot", Ref: ref})
			})
		}
		publish := func(ref string, code sandbox.Code) {
			t.Helper()
			do(code, func(ss store.Sessions) error { return ss.PublishArchive(ctx, "acme", "g", ref) })
		}
		wantDue := func(refs ...string) {
			t.Helper()
			all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.KeptArchive, error) { return tx.Operator().DueArchives(ctx, 10) })
			var got []string
			for _, k := range all {
				got = append(got, k.Archive.Ref)
			}
			slices.Sort(got)
			if err != nil || !slices.Equal(got, refs) {
				t.Errorf("%v are to go, %v; want %v", got, err, refs)
			}
		}
		claim := func(ref string, want bool) {
			t.Helper()
			do("", func(ss store.Sessions) error {
				got, err := ss.DeleteArchive(ctx, "acme", ref)
				if got != want {
					t.Errorf("deleting %s: %v, want %v", ref, got, want)
				}
				return err
			})
		}
		for n := range 3 {
			register(fmt.Sprintf("a%d", n))
			publish(fmt.Sprintf("a%d", n), "")
		}
		publish("a2", "") // publish the current one again
		wantDue("a0")
		for _, ref := range []string{"a1", "a2"} {
			claim(ref, false)
			do("", func(ss store.Sessions) error {
				if goes, err := ss.RetireArchive(ctx, "acme", ref, false); goes || err != nil {
					t.Errorf("%s goes: %v, %v", ref, goes, err)
				}
				return nil
			})
		}
		claim("a0", true)
		claim("a0", false) // another caller deletes it
		wantDue()
		for range 3 {
			do("", func(ss store.Sessions) error { return ss.ArchiveDeleted(ctx, "acme", "a0", true) })
		}
		now = now.Add(3 * time.Minute)
		wantDue() // later each time
		now = now.Add(time.Minute)
		wantDue("a0")
		claim("a0", true)
		now = now.Add(20 * time.Minute) // the daemon that was deleting it died
		claim("a0", true)
		do("", func(ss store.Sessions) error { return ss.ArchiveDeleted(ctx, "acme", "a0", false) })

		register("late")
		wantDue()
		now = now.Add(2 * time.Hour)
		wantDue("late")
		claim("late", true)
		publish("late", sandbox.CodeConflict) // and the lease does not name it
		publish("nothing", sandbox.CodeNotFound)
		do(sandbox.CodeNotFound, func(ss store.Sessions) error {
			_, err := ss.RetireArchive(ctx, "acme", "nothing", true)
			return err
		})
		all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.KeptArchive, error) { return tx.Sessions().Archives(ctx, "acme", "g") })
		if err != nil || len(all) != 3 || all[0].State != store.ArchivePrevious || all[1].State != store.ArchiveCurrent || all[2].State != store.ArchiveDeleting {
			t.Errorf("the ledger: %+v, %v", all, err)
		}
	})
}
