package gvisor_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// sources are what is paused, saved and forked: a sandbox that does nothing,
// and one whose process has written to so much memory.
var sources = []struct {
	name  string
	dirty int // MB
}{{"idle", 0}, {"256MB", 256}}

// source makes one.
func source(b *testing.B, p interface {
	Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error)
}, dirty int,
) driver.Instance {
	b.Helper()
	in, err := p.Create(b.Context(), &sandbox.Spec{ID: "source", Image: "host"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = in.Destroy(context.Background()) })
	if dirty > 0 {
		proc := background(b, in, repl)
		out := bufio.NewReader(proc.Stdout())
		ask(b, proc, out, fmt.Sprintf("x = b'%%x' * (%d << 19)", dirty))
	}
	return in
}

func BenchmarkPause(b *testing.B) {
	p := newProvider(b, nil)
	in := source(b, p, 0)
	var stop, resume laps
	for b.Loop() {
		start := time.Now()
		if err := in.(driver.Pauser).Pause(b.Context()); err != nil {
			b.Fatal(err)
		}
		stop.add(start)
		start = time.Now()
		if err := in.(driver.Pauser).Resume(b.Context()); err != nil {
			b.Fatal(err)
		}
		resume.add(start)
		if err := runIn(b.Context(), in, "/bin/true"); err != nil {
			b.Fatal(err)
		}
	}
	stop.report(b, "pause")
	resume.report(b, "resume")
}

func BenchmarkSnapshot(b *testing.B) {
	for _, s := range sources {
		for _, memory := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/memory=%v", s.name, memory), func(b *testing.B) {
				in := source(b, newProvider(b, nil), s.dirty)
				var all laps
				for b.Loop() {
					dir, err := os.MkdirTemp(b.TempDir(), "")
					if err != nil {
						b.Fatal(err)
					}
					start := time.Now()
					if _, err := in.(driver.Snapshotter).Snapshot(b.Context(), dir, driver.SnapshotOptions{Memory: memory}); err != nil {
						b.Fatal(err)
					}
					all.add(start)
					os.RemoveAll(dir)
				}
				all.report(b, "snapshot")
			})
		}
	}
}

// BenchmarkRestore measures from the call to the first output of a new command.
func BenchmarkRestore(b *testing.B) {
	for _, s := range sources {
		for _, memory := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/memory=%v", s.name, memory), func(b *testing.B) {
				p := newProvider(b, nil)
				dir := snapshot(b, source(b, p, s.dirty), driver.SnapshotOptions{Memory: memory})
				var all laps
				i := 0
				for b.Loop() {
					start := time.Now()
					in, _, err := p.Restore(b.Context(), &sandbox.Spec{ID: sandbox.ID(fmt.Sprint("copy-", i)), Image: "host"}, dir)
					if err != nil {
						b.Fatal(err)
					}
					if err := runIn(b.Context(), in, "/bin/echo", "ok"); err != nil {
						b.Fatal(err)
					}
					all.add(start)
					_ = in.Destroy(b.Context())
					i++
				}
				all.report(b, "first-output")
			})
		}
	}
}

// BenchmarkFork measures ten copies of a running sandbox, made at once: from
// the beginning of the snapshot to the first and to the last first output, and
// what a copy takes of the machine's memory.
func BenchmarkFork(b *testing.B) {
	for _, s := range sources {
		b.Run(s.name, func(b *testing.B) {
			p := newProvider(b, nil)
			in := source(b, p, s.dirty)
			var first, last laps
			var memory int64
			i := 0
			for b.Loop() {
				i++
				before := available(b)
				start := time.Now()
				dir := snapshot(b, in, driver.SnapshotOptions{Memory: true})
				copies := make([]driver.Instance, 10)
				var once sync.Once
				var wg sync.WaitGroup
				for n := range copies {
					wg.Go(func() {
						twin, _, err := p.Restore(b.Context(), &sandbox.Spec{ID: sandbox.ID(fmt.Sprintf("fork-%d-%d", i, n)), Image: "host"}, dir)
						if err == nil {
							err = runIn(b.Context(), twin, "/bin/echo", "ok")
						}
						if err != nil {
							b.Error(err)
							return
						}
						once.Do(func() { first.add(start) })
						copies[n] = twin
					})
				}
				wg.Wait()
				last.add(start)
				memory += (before - available(b)) / 10
				for _, c := range copies {
					if c != nil {
						_ = c.Destroy(b.Context())
					}
				}
				os.RemoveAll(dir)
			}
			first.report(b, "first-of-10")
			last.report(b, "last-of-10")
			b.ReportMetric(float64(memory)/float64(i)/(1<<20), "MB/copy")
		})
	}
}

// available is what the machine could still give away, in bytes.
func available(b *testing.B) int64 {
	b.Helper()
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var kb int64
		if n, _ := fmt.Sscanf(sc.Text(), "MemAvailable: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	b.Fatal("no MemAvailable")
	return 0
}
