package gvisor_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// sources are the sandboxes that are paused, saved and forked: an idle one, and
// some with a process that has written to memory.
var sources = []struct {
	name  string
	dirty int // MB
}{{"idle", 0}, {"256MB", 256}}

// source creates one of them.
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
					start := time.Now()
					snap, err := in.(driver.Snapshotter).Snapshot(b.Context(), driver.SnapshotOptions{ID: newSnapshotID(), Memory: memory})
					if err != nil {
						b.Fatal(err)
					}
					all.add(start)
					os.RemoveAll(filepath.Dir(filesOf(b, snap.Ref)))
				}
				all.report(b, "snapshot")
			})
		}
	}
}

// BenchmarkRestore measures the time from the call to the first output of a new
// command.
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
					in, _, err := p.Restore(b.Context(), &sandbox.Spec{ID: sandbox.ID(fmt.Sprint("copy-", i)), Image: "host"}, refTo(b, dir))
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

// BenchmarkRestorePooled restores one snapshot repeatedly, so that it is
// prewarmed.
func BenchmarkRestorePooled(b *testing.B) {
	for _, s := range sources {
		b.Run(s.name, func(b *testing.B) {
			p := newProvider(b, func(o *gvisor.Options) { o.Pool = 2 })
			dir := snapshot(b, source(b, p, s.dirty), driver.SnapshotOptions{Memory: true})
			restored := func(i int, all *laps) {
				start := time.Now()
				in, _, err := p.Restore(b.Context(), &sandbox.Spec{ID: sandbox.ID(fmt.Sprint("copy-", i)), Image: "host", Hostname: "copy"}, refTo(b, dir))
				if err != nil {
					b.Fatal(err)
				}
				if err := runIn(b.Context(), in, "/bin/echo", "ok"); err != nil {
					b.Fatal(err)
				}
				all.add(start)
				_ = in.Destroy(b.Context())
				awaitReady(b, p, 1, i > 1)
			}
			var cold, all laps
			restored(0, &cold)
			restored(1, &cold)
			for i := 2; b.Loop(); i++ {
				restored(i, &all)
			}
			all.report(b, "first-output")
		})
	}
}

// awaitReady waits until the pool is filled.
func awaitReady(b *testing.B, p *gvisor.Provider, n int, restored bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		all, from := p.Ready()
		if all >= n && (!restored || from > 0) {
			return
		}
		if time.Now().After(deadline) {
			b.Fatal("the pool is not filled")
		}
	}
}

// BenchmarkFork measures ten concurrent copies of a running sandbox: the time
// from the start of the snapshot to the first output of the first and of the
// last copy, and the memory that a copy needs. Some kernels come from a pool.
func BenchmarkFork(b *testing.B) {
	for _, s := range sources {
		for _, pool := range []int{0, 10} {
			b.Run(fmt.Sprintf("%s/pool=%d", s.name, pool), func(b *testing.B) { benchmarkFork(b, s.dirty, pool) })
		}
	}
}

func benchmarkFork(b *testing.B, dirty, pool int) {
	p := newProvider(b, func(o *gvisor.Options) { o.Pool = pool })
	in := source(b, p, dirty)
	p.Drain()
	fork := func(i, count int, start time.Time, each func()) []driver.Instance {
		snap, err := in.(driver.Snapshotter).Snapshot(b.Context(), driver.SnapshotOptions{ID: newSnapshotID(), Memory: true, Transient: true})
		if err != nil {
			b.Fatal(err)
		}
		copies := make([]driver.Instance, count)
		var wg sync.WaitGroup
		for n := range copies {
			wg.Go(func() {
				id := sandbox.ID(fmt.Sprintf("fork-%d-%d", i, n))
				twin, _, err := p.Restore(b.Context(), &sandbox.Spec{ID: id, Image: "host", Hostname: string(id)}, snap.Ref)
				if err == nil {
					err = runIn(b.Context(), twin, "/bin/echo", "ok")
				}
				if err != nil {
					b.Error(err)
					return
				}
				each()
				copies[n] = twin
			})
		}
		wg.Wait()
		if err := p.RemoveSnapshot(b.Context(), snap.Ref); err != nil {
			b.Error(err)
		}
		return copies
	}
	end := func(copies []driver.Instance) {
		for _, c := range copies {
			if c != nil {
				_ = c.Destroy(b.Context())
			}
		}
	}
	var one, first, last laps
	var memory, group int64
	for i := 1; b.Loop(); i++ {
		if pool > 0 && i > 1 {
			awaitReady(b, p, pool, false)
		}
		start := time.Now()
		end(fork(2*i, 1, start, func() { one.add(start) }))
		if pool > 0 && i > 1 {
			awaitReady(b, p, pool, false)
		}
		before := available(b)
		start = time.Now()
		var once sync.Once
		copies := fork(2*i+1, 10, start, func() { once.Do(func() { first.add(start) }) })
		last.add(start)
		memory += (before - available(b)) / 10
		for _, c := range copies {
			if u, err := c.(driver.Meter).Usage(b.Context()); err == nil {
				group += u.Memory / 10
			}
		}
		end(copies)
	}
	n := float64(len(last)) * (1 << 20)
	one.report(b, "one")
	first.report(b, "first-of-10")
	last.report(b, "last-of-10")
	b.ReportMetric(float64(memory)/n, "MB/copy")
	b.ReportMetric(float64(group)/n, "cgroup-MB/copy")
}

// available returns the available memory of the machine in bytes.
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
