package daemon_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// BenchmarkExec compares a command through the driver alone with one through
// the whole daemon, its record included: the difference is what the API costs.
func BenchmarkExec(b *testing.B) {
	b.Run("driver", func(b *testing.B) {
		p := fake.New(fake.Options{})
		defer p.Close()
		in, err := p.Create(context.Background(), &sandbox.Spec{ID: "sb-bench", Name: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			var proc driver.Process
			if proc, err = in.Exec(context.Background(), &sandbox.Command{Args: []string{"true"}}); err == nil {
				_, err = proc.Wait(context.Background())
				_ = proc.Close()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	c := daemontest.Client(b, daemontest.New(b).Start(b, nil))
	s, err := c.Create(context.Background(), sandbox.Spec{}, atoll.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("api", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Run(context.Background(), sandbox.Command{Args: []string{"true"}}, atoll.RunOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			p, err := s.Exec(context.Background(), sandbox.Command{Args: []string{"true"}})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := p.Wait(context.Background()); err != nil {
				b.Fatal(err)
			}
			_ = p.Close()
		}
	})
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Get(context.Background(), s.Name()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkList10000 lists ten thousand sandboxes: the first page, as a person
// sees it, and all, page by page.
func BenchmarkList10000(b *testing.B) {
	const n = 10_000
	ctx := context.Background()
	m := daemontest.New(b)
	c := daemontest.Client(b, m.Start(b, nil))
	if err := m.Store(b).Update(ctx, func(tx *store.Tx) error {
		for i := range n {
			sb := store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: sandbox.ID(fmt.Sprint("sb-", i)), Name: fmt.Sprint("b", i), State: sandbox.Running, Provider: "fake", Node: "elsewhere", Labels: map[string]string{"app": "web", "tier": fmt.Sprint(i % 7)}, Resources: sandbox.Resources{CPUs: 1, Memory: 1 << 30}}}}
			if _, _, err := tx.Sandboxes().Create(ctx, "default", sb, store.Create{}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	list := func(b *testing.B, want int) {
		before := processorTime(b)
		for b.Loop() {
			got := 0
			for _, err := range c.List(ctx, atoll.ListOptions{Page: 1000}) {
				if err != nil {
					b.Fatal(err)
				}
				if got++; got == want {
					break
				}
			}
			if got != want {
				b.Fatalf("%d listed", got)
			}
		}
		// On a busy machine this says more than the time on the wall.
		b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1e3/float64(b.N), "cpu-ms/op")
	}
	b.Run("first", func(b *testing.B) { list(b, 1000) })
	b.Run("all", func(b *testing.B) { list(b, n) })
}

// BenchmarkExecTogether has 50 clients run commands in as many sandboxes,
// which cost next to nothing: it is how many the daemon itself can carry.
func BenchmarkExecTogether(b *testing.B) {
	const count = 50
	ctx := context.Background()
	c := daemontest.Client(b, daemontest.New(b).Start(b, nil))
	work := make(chan struct{})
	var wg sync.WaitGroup
	for range count {
		s, err := c.Create(ctx, sandbox.Spec{}, atoll.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			for range work {
				if _, err := s.Run(ctx, sandbox.Command{Args: []string{"true"}}, atoll.RunOptions{}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
}

// processorTime is what this process has used, the daemon and its clients.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
