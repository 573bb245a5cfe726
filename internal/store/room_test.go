package store_test

import (
	"strconv"
	"testing"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestAttackEndlessRecords makes records until a tenant may have no more. What
// it has stays usable, and another tenant is not affected.
func TestAttackEndlessRecords(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s, ctx := open(store.Options{}), t.Context()
		for _, tenant := range []string{"acme", "rival"} {
			ok(t, s.Update(ctx, func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(ctx, tenant); return err }))
		}
		made := 0
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			for made = range 2000 {
				if _, err := tx.Profiles().Create(ctx, "acme", profile("n"+strconv.Itoa(made))); sandbox.CodeOf(err) == sandbox.CodeExhausted {
					break
				} else if err != nil {
					return err
				}
			}
			_, err := tx.Profiles().Create(ctx, "rival", profile("n0"))
			return err
		}))
		if made != 1000 {
			t.Errorf("%d were made, want that the next is refused", made)
		}
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			for n := range 150 {
				if _, err := tx.Profiles().Update(ctx, "acme", 0, profile("n1", strconv.Itoa(n)+".example")); err != nil {
					return err
				}
			}
			return nil
		}))
		for version, want := range map[int64]sandbox.Code{1: sandbox.CodeNotFound, 51: sandbox.CodeNotFound, 52: "", 151: ""} {
			_, err := store.Read(ctx, s, func(tx *store.Tx) (store.Profile, error) { return tx.Profiles().Version(ctx, "acme", "n1", version) })
			if sandbox.CodeOf(err) != want {
				t.Errorf("version %d: %v, want %q", version, err, want)
			}
		}
	})
}
