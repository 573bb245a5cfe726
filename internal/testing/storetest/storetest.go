// Package storetest provides stores for tests: SQLite files, and databases of a
// real PostgreSQL server that it starts for the test binary and removes with
// it. Without PostgreSQL, the test is skipped.
package storetest

import (
	"context"
	"testing"

	"github.com/atoll-run/atoll/internal/store"
)

// Each runs f as a subtest for each kind of database. f may call open again to
// get another Store of the same database, like another daemon. Everything is
// closed and removed with the subtest.
func Each(t *testing.T, f func(t *testing.T, open func(store.Options) *store.Store)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { f(t, opener(t, "sqlite:"+t.TempDir()+"/atoll.db")) })
	t.Run("postgres", func(t *testing.T) { f(t, opener(t, Postgres(t))) })
}

// SQLite opens a new SQLite store, for tests that do not depend on the kind of
// database.
func SQLite(t testing.TB, opts store.Options) *store.Store {
	t.Helper()
	return opener(t, "sqlite:"+t.TempDir()+"/atoll.db")(opts)
}

func opener(t testing.TB, url string) func(store.Options) *store.Store {
	return func(opts store.Options) *store.Store {
		t.Helper()
		s, err := store.Open(context.Background(), url, opts)
		if err != nil {
			t.Fatalf("opening the store: %v (%v)", err, cause(err))
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("closing the store: %v", err)
			}
		})
		return s
	}
}

func cause(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok || u.Unwrap() == nil {
			return err
		}
		err = u.Unwrap()
	}
}
