package daemon_test

import (
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// BenchmarkSession measures what a session adds to an operation of its sandbox:
// the difference of "session" and "sandbox", on SQLite and sandboxes in memory,
// and acquiring a warm session.
func BenchmarkSession(b *testing.B) {
	m := daemontest.New(b)
	c := daemontest.Client(b, m.Start(b, nil))
	s, err := c.Sessions().Create(b.Context(), sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	sb, err := c.Get(b.Context(), string(s.Receipt().Sandbox))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("sandbox", func(b *testing.B) {
		for b.Loop() {
			if _, err := sb.Files().Stat(b.Context(), "/"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("session", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Files().Stat(b.Context(), "/"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("acquire", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Acquire(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
