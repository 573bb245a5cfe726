package guest_test

import (
	"context"
	"io"
	"runtime"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// TestFinished checks that a command is finished some time after it ended, but
// not while its orphans can still write.
func TestFinished(t *testing.T) {
	c, _ := fastClient(t)
	start := func(script string) (driver.Process, driver.Finisher) {
		cmd := sandbox.Command{Shell: script}
		p, err := c.Exec(t.Context(), &cmd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		f, ok := driver.As[driver.Finisher](p)
		if !ok {
			t.Fatal("never known")
		}
		return p, f
	}
	p, f := start("echo out; echo err >&2; exit 3")
	for !f.Finished() {
		runtime.Gosched()
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if exit, err := p.Wait(over); err != nil || exit.Code != 3 {
		t.Error(exit, err)
	}
	out, err := io.ReadAll(p.Stdout())
	if string(out) != "out\n" || err != nil {
		t.Errorf("%q %v", out, err)
	}
	if out, err = io.ReadAll(p.Stderr()); string(out) != "err\n" || err != nil {
		t.Errorf("%q %v", out, err)
	}

	if _, f = start("sleep 1000"); f.Finished() {
		t.Error("it runs")
	}
	p, f = start("sleep 1000 & echo left")
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 || f.Finished() {
		t.Error("finished although an orphan can write", exit, err)
	}
}

// BenchmarkFinished counts the commands that are already finished when Exec
// returns.
func BenchmarkFinished(b *testing.B) {
	c, _ := fastClient(b)
	finished := 0
	for b.Loop() {
		p, err := c.Exec(b.Context(), &sandbox.Command{Args: []string{"/bin/true"}})
		if err != nil {
			b.Fatal(err)
		}
		if f, ok := p.(driver.Finisher); ok && f.Finished() {
			finished++
		}
		if _, err := p.Wait(b.Context()); err != nil {
			b.Error(err)
		}
		_ = p.Close()
	}
	b.ReportMetric(float64(finished)/float64(b.N), "finished")
}
