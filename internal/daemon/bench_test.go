package daemon_test

import (
	"context"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/provider/fake"
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
