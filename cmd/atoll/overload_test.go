package main

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// Eight times as many clients as the machine can serve achieve the same
// throughput as those, and every request is served or gets an error that says
// that the machine is busy.
func TestOverload(t *testing.T) {
	fullOnly(t)
	s := newSoaker(t)
	s.sandbox(t, "first") // warm up
	few, _ := s.cycles(t, 8)
	many, refused := s.cycles(t, 64)
	t.Logf("cycles per second: %.1f with 8 clients, %.1f with 64, of which %d were refused", few, many, refused)
	if many < few/2 {
		t.Error("more clients get less done")
	}
}

// cycles runs clients that create, use and remove sandboxes for a while, and
// returns the rate.
func (s *soaker) cycles(t *testing.T, clients int) (perSecond float64, refused int64) {
	t.Helper()
	const period = 10 * time.Second
	var done, busy atomic.Int64
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), period)
	defer cancel()
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				sb, err := s.client.Create(t.Context(), sandbox.Spec{Resources: sandbox.Resources{Memory: 256 << 20}}, atoll.CreateOptions{})
				if sandbox.CodeOf(err) == sandbox.CodeExhausted {
					busy.Add(1)
					continue
				}
				if err == nil {
					_, err = sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}}, atoll.RunOptions{})
				}
				if err == nil {
					err = sb.Destroy(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), busy.Load()
}
