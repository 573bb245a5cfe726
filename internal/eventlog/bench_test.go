package eventlog_test

import (
	"testing"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
)

// BenchmarkAppend appends from one caller, who waits for the disk each time.
func BenchmarkAppend(b *testing.B) {
	s := storetest.SQLite(b, store.Options{})
	l := newLog(b, s, eventlog.Options{})
	tenants(b, s, "acme")
	for b.Loop() {
		if _, err := l.Append(b.Context(), event("acme", "/a")); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendTogether appends from many callers, who share transactions.
func BenchmarkAppendTogether(b *testing.B) {
	s := storetest.SQLite(b, store.Options{})
	l := newLog(b, s, eventlog.Options{})
	tenants(b, s, "acme")
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := l.Append(b.Context(), event("acme", "/a")); err != nil {
				b.Error(err)
			}
		}
	})
}
