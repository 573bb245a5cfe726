package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// Recordings are listed page by page, newest first, and bounded per tenant (RB-73).
func TestRecordingsAreListedAndBounded(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s, ctx := open(store.Options{}), t.Context()
		tenants(t, s, "acme", "rival")
		began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		add := func(tenant, id string, n int) error {
			return s.Update(ctx, func(tx *store.Tx) error {
				r := viewing.Recording{ID: id, State: viewing.RecordingRunning, Sandbox: sandbox.ID(fmt.Sprint("sb-", n%2)), Name: "box", Started: began.Add(time.Duration(n) * time.Second), Size: 10}
				return tx.Recordings().Create(ctx, store.Recording{Recording: r, Tenant: tenant, Node: "n1"}, 5, 100)
			})
		}
		for n := range 5 {
			ok(t, add("acme", fmt.Sprint("rec-", n), n))
		}
		if err := add("acme", "rec-5", 5); sandbox.CodeOf(err) != sandbox.CodeExhausted {
			t.Errorf("a sixth that runs: %v", err)
		}
		ok(t, add("rival", "rec-0", 0)) // another tenant's limit, and ids
		list := func(only sandbox.ID, q viewing.RecordingQuery) (ids []string, next string) {
			t.Helper()
			ok(t, s.View(ctx, func(tx *store.Tx) error {
				page, more, err := tx.Recordings().List(ctx, "acme", only, q)
				for _, r := range page {
					ids = append(ids, r.ID)
				}
				next = more
				return err
			}))
			return ids, next
		}
		var all []string
		for q := (viewing.RecordingQuery{Limit: 2}); ; {
			page, next := list("", q)
			all = append(all, page...)
			if q.Cursor = next; next == "" {
				break
			}
		}
		if want := []string{"rec-4", "rec-3", "rec-2", "rec-1", "rec-0"}; !slices.Equal(all, want) {
			t.Errorf("pages list %q, want %q", all, want)
		}
		for want, q := range map[string]viewing.RecordingQuery{"[rec-3 rec-1]": {Sandbox: "sb-1"}, "[rec-4 rec-3 rec-2 rec-1 rec-0]": {Sandbox: "box"}, "[]": {Session: "agent"}} {
			if got, _ := list("", q); fmt.Sprint(got) != want {
				t.Errorf("%+v lists %q, want %s", q, got, want)
			}
		}
		if got, _ := list("sb-0", viewing.RecordingQuery{Sandbox: "box"}); !slices.Equal(got, []string{"rec-4", "rec-2", "rec-0"}) {
			t.Errorf("of the only sandbox: %q", got)
		}
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			r, err := tx.Recordings().Get(ctx, "acme", "rec-4")
			ok(t, err)
			r.State, r.Size = viewing.RecordingAvailable, 60
			return tx.Recordings().Set(ctx, r)
		}))
		if err := add("acme", "rec-5", 5); sandbox.CodeOf(err) != sandbox.CodeExhausted {
			t.Errorf("with 100 bytes kept: %v", err)
		}
		ok(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Recordings().Delete(ctx, "acme", "rec-4") }))
		ok(t, add("acme", "rec-5", 5))
		ok(t, s.View(ctx, func(tx *store.Tx) error {
			left, err := tx.Operator().UnfinishedRecordings(ctx, "n1")
			if len(left) != 6 {
				t.Errorf("unfinished are %+v", left)
			}
			return err
		}))
	})
}
