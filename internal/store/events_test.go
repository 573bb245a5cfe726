package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// The database refuses to remove records without a cut.
func TestEventsAreAppendOnly(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s, ctx := open(store.Options{}), t.Context()
		row := func(seq int64, opens string) store.EventRow {
			return store.EventRow{Seq: seq, Time: time.Unix(seq, 0), Type: "done", Op: "files.read", Body: []byte("{}"), Hash: []byte("hash"), Opens: opens}
		}
		cut := func(seq int64) (n int64, err error) {
			err = s.Update(ctx, func(tx *store.Tx) (err error) {
				n, err = tx.Events().Cut(ctx, "acme", store.EventCut{Seq: seq, Hash: []byte("hash"), Time: time.Unix(9, 0), Seal: []byte("seal")})
				return err
			})
			return n, err
		}
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			if _, err := tx.Tenants().Ensure(ctx, "acme"); err != nil {
				return err
			}
			if _, err := tx.Events().LockHead(ctx, "acme"); err != nil {
				return err
			}
			return tx.Events().Append(ctx, "acme", []store.EventRow{row(1, ""), row(2, ""), row(3, "n1"), row(4, "")})
		}))
		n, err := cut(1)
		ok(t, err)
		if n != 1 {
			t.Errorf("%d removed", n)
		}
		for _, sql := range []string{"DELETE FROM events WHERE seq = 2", "DELETE FROM events", "UPDATE events SET op = 'x'"} {
			if err := s.Exec(ctx, sql); err == nil || !strings.Contains(err.Error(), "append-only") {
				t.Errorf("%s: %v", sql, err)
			}
		}
		if _, err := cut(3); sandbox.CodeOf(err) != sandbox.CodeConflict {
			t.Errorf("what has no outcome was removed: %v", err)
		}
		left, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.EventRow, error) {
			return tx.Events().List(ctx, "acme", store.EventFilter{}, 0, 10)
		})
		ok(t, err)
		c, err := store.Read(ctx, s, func(tx *store.Tx) (store.EventCut, error) { return tx.Events().LastCut(ctx, "acme") })
		ok(t, err)
		if len(left) != 3 || c.Seq != 1 || string(c.Seal) != "seal" || !c.Time.Equal(time.Unix(9, 0)) {
			t.Errorf("%d left after %+v", len(left), c)
		}
	})
}

// A cursor never decreases, and belongs to one daemon.
func TestEventCursors(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s, ctx := open(store.Options{}), t.Context()
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			if _, err := tx.Tenants().Ensure(ctx, "acme"); err != nil {
				return err
			}
			if _, err := tx.Events().LockHead(ctx, "acme"); err != nil {
				return err
			}
			return tx.Events().Append(ctx, "acme", []store.EventRow{{Seq: 1, Body: []byte("{}"), Hash: []byte("h")}, {Seq: 2, Body: []byte("{}"), Hash: []byte("h")}})
		}))
		behind := func(node string) (got []store.EventCursor) {
			got, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.EventCursor, error) { return tx.Operator().BehindEvents(ctx, node) })
			ok(t, err)
			return got
		}
		for _, seq := range []int64{1, 0} {
			ok(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Events().SetCursor(ctx, "n1", "acme", seq) }))
		}
		if got := behind("n1"); len(got) != 1 || got[0] != (store.EventCursor{Tenant: "acme", Seq: 1, Head: 2}) {
			t.Errorf("%+v", got)
		}
		ok(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Events().SetCursor(ctx, "n1", "acme", 2) }))
		if got := behind("n1"); len(got) != 0 {
			t.Errorf("%+v", got)
		}
		if got := behind("n2"); len(got) != 1 || got[0].Seq != 0 {
			t.Errorf("%+v", got)
		}
	})
}
