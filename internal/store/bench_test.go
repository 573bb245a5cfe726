package store_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// benchEach runs a benchmark against both databases.
func benchEach(b *testing.B, f func(b *testing.B, s *store.Store)) {
	for name, open := range map[string]func(b *testing.B) *store.Store{
		"sqlite": func(b *testing.B) *store.Store { return storetest.SQLite(b, store.Options{}) },
		"postgres": func(b *testing.B) *store.Store {
			s, err := store.Open(context.Background(), storetest.Postgres(b), store.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = s.Close() })
			return s
		},
	} {
		b.Run(name, func(b *testing.B) {
			s := open(b)
			ctx := context.Background()
			if err := s.Update(ctx, func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(ctx, "acme"); return err }); err != nil {
				b.Fatal(err)
			}
			f(b, s)
		})
	}
}

func BenchmarkCreate(b *testing.B) {
	benchEach(b, func(b *testing.B, s *store.Store) {
		i := 0
		for b.Loop() {
			i++
			if _, _, err := create(s, "acme", labelled(fmt.Sprint("b", i)), store.Create{IdempotencyKey: fmt.Sprint(i)}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	benchEach(b, func(b *testing.B, s *store.Store) {
		if _, _, err := create(s, "acme", labelled("web"), store.Create{}); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := get(s, "acme", "id-web"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkList10000 lists ten thousand sandboxes with labels in one page.
func BenchmarkList10000(b *testing.B) {
	benchEach(b, func(b *testing.B, s *store.Store) {
		ctx := context.Background()
		const n = 10_000
		if err := s.Update(ctx, func(tx *store.Tx) error {
			for i := range n {
				sb := labelled(fmt.Sprint("b", i))
				sb.Resources = sandbox.Resources{CPUs: 1, Memory: 1 << 30}
				if _, _, err := tx.Sandboxes().Create(ctx, "acme", sb, store.Create{}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		before := processorTime(b)
		for b.Loop() {
			if err := s.View(ctx, func(tx *store.Tx) error {
				sandboxes, _, err := tx.Sandboxes().Summaries(ctx, "acme", store.Filter{}, store.Page{Limit: n})
				if err == nil && len(sandboxes) != n {
					err = fmt.Errorf("%d listed", len(sandboxes))
				}
				return err
			}); err != nil {
				b.Fatal(err)
			}
		}
		// On a busy machine this is more reliable than wall-clock time.
		b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1e3/float64(b.N), "cpu-ms/op")
	})
}

// processorTime returns the CPU time of this process, without the server.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
