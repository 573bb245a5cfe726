package store

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
)

// Many callers run more queries than can stay prepared, some while the pool
// prepares them. All get correct answers.
func TestStatementsAreKeptPrepared(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error("close:", err)
		}
	}()
	ask := func(run func(context.Context, func(*Tx) error) error, n int) {
		var got, arg int
		err := run(t.Context(), func(tx *Tx) error {
			return tx.queryRow(t.Context(), fmt.Sprintf("SELECT %d, $1", n), n+1).Scan(&got, &arg)
		})
		if err != nil || got != n || arg != n+1 {
			t.Errorf("query %d: got %d and %d, %v; want %d and %d", n, got, arg, err, n, n+1)
		}
	}
	var all sync.WaitGroup
	for range 3 * readers {
		all.Go(func() {
			for n := range maxStatements + 20 {
				ask(s.View, n)
				if n%50 == 0 {
					ask(s.Update, n)
				}
			}
		})
	}
	all.Wait()
	if got := len(s.prepared[s.read].all); got != maxStatements {
		t.Errorf("%d statements are prepared for readers; want the limit, %d", got, maxStatements)
	}
	if got := s.prepared[s.write].all["SELECT 50, $1"]; got == nil {
		t.Error("the writer's statement is not prepared after its first use")
	}
	ask(s.View, 7)
	ask(s.Update, 7)
}

// A failed statement, and a transaction that is rolled back, leave the statement
// usable.
func TestStatementsSurviveFailures(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	insert := func(id string) error {
		return s.Update(t.Context(), func(tx *Tx) error {
			_, err := tx.exec(t.Context(), "INSERT INTO nodes (id, instance, started, heartbeat) VALUES ($1, $1, 1, 1)", id)
			return err
		})
	}
	for range 3 {
		canceled, cancel := context.WithCancel(t.Context())
		err := s.Update(canceled, func(tx *Tx) error {
			_, err := tx.exec(canceled, "INSERT INTO nodes (id, instance, started, heartbeat) VALUES ($1, $1, 1, 1)", "a")
			cancel()
			return err
		})
		if err == nil {
			t.Fatal("a canceled transaction was committed")
		}
		if err := insert("b"); err == nil {
			if err = insert("b"); err == nil {
				t.Fatal("the same node was inserted twice")
			}
		}
	}
	if err := insert("a"); err != nil {
		t.Errorf("inserting after failures: %v", err)
	}
}
