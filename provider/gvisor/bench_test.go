package gvisor_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// laps collects the times of single rounds. It reports their median, which is
// more useful than the framework's mean.
type laps []time.Duration

func (l *laps) add(since time.Time) { *l = append(*l, time.Since(since)) }

func (l laps) report(b *testing.B, name string) {
	sorted := slices.Sorted(slices.Values(l))
	b.ReportMetric(float64(sorted[len(sorted)/2])/1e6, name+"-ms")
}

// benchImages are the images for measuring creation: the machine's own
// programs, which a file server serves, and one that the kernel reads itself.
func benchImages(b *testing.B) map[string]string {
	b.Helper()
	return map[string]string{"host": "host", "image": smallImage(b)}
}

// smallImage returns an image with a few of the host's programs, or the one
// that $ATOLL_BENCH_IMAGE names.
func smallImage(b *testing.B) string {
	b.Helper()
	if ref := os.Getenv("ATOLL_BENCH_IMAGE"); ref != "" {
		return ref
	}
	file := filepath.Join(b.TempDir(), "rootfs.tar")
	f, err := os.Create(file)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, name := range append(libraries(b, "/bin/sh", "/bin/true", "/bin/echo"), "/bin/sh", "/bin/true", "/bin/echo") {
		content, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		if err := w.WriteHeader(&tar.Header{Name: name[1:], Mode: 0o755, Size: int64(len(content))}); err != nil {
			b.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return "tar:" + file
}

// libraries returns the libraries that the dynamic linker loads for programs.
func libraries(b *testing.B, programs ...string) []string {
	b.Helper()
	out, err := exec.Command("ldd", programs...).Output()
	if err != nil {
		b.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1)
	var libs []string
	for _, m := range found {
		libs = append(libs, m[1])
	}
	slices.Sort(libs)
	return slices.Compact(libs)
}

// numbered returns a spec with a unique ID.
func numbered(i int, image string) *sandbox.Spec {
	return &sandbox.Spec{ID: sandbox.ID(fmt.Sprintf("bench-%d", i)), Image: image}
}

// firstOutput creates a sandbox, runs a command in it, and returns after the
// command's output and end.
func firstOutput(ctx context.Context, p *gvisor.Provider, spec *sandbox.Spec) (driver.Instance, error) {
	in, err := p.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return in, runIn(ctx, in, "/bin/echo", "ok")
}

// runIn runs a command that must succeed.
func runIn(ctx context.Context, in driver.Instance, argv ...string) error {
	proc, err := in.Exec(ctx, &sandbox.Command{Args: argv})
	if err != nil {
		return err
	}
	defer proc.Close()
	if _, err := io.Copy(io.Discard, proc.Stdout()); err != nil {
		return err
	}
	exit, err := proc.Wait(ctx)
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("%v exited with %d: %s", argv, exit.Code, exit.Detail)
	}
	return err
}

// BenchmarkCreateCold measures the time to the first output of a first command
// and, separately, Destroy.
func BenchmarkCreateCold(b *testing.B) {
	for name, image := range benchImages(b) {
		b.Run(name, func(b *testing.B) {
			p := newProvider(b, nil)
			var made, destroyed laps
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				in, err := firstOutput(b.Context(), p, numbered(i, image))
				if err != nil {
					b.Fatal(err)
				}
				made.add(began)
				b.StopTimer()
				began = time.Now()
				if err := in.Destroy(b.Context()); err != nil {
					b.Fatal(err)
				}
				destroyed.add(began)
				b.StartTimer()
			}
			made.report(b, "median")
			destroyed.report(b, "destroy")
		})
	}
}

// BenchmarkCreateStages measures where the time of a cold create goes, from one
// point of it to the next, and the processor time of this process and of the
// sandbox's, whose parts run side by side.
func BenchmarkCreateStages(b *testing.B) {
	for name, image := range benchImages(b) {
		b.Run(name, func(b *testing.B) {
			stages := map[string]*laps{}
			var last time.Time
			mark := func(point string) error {
				if stages[point] == nil {
					stages[point] = &laps{}
				}
				stages[point].add(last)
				last = time.Now()
				return nil
			}
			p := newProvider(b, func(o *gvisor.Options) { o.Fault = mark })
			own, sandboxes := processorTime(b, unix.RUSAGE_SELF), processorTime(b, unix.RUSAGE_CHILDREN)
			for i := 0; b.Loop(); i++ {
				last = time.Now()
				in, err := p.Create(b.Context(), numbered(i, image))
				if err != nil {
					b.Fatal(err)
				}
				_ = mark("returned")
				if err := runIn(b.Context(), in, "/bin/echo", "ok"); err != nil {
					b.Fatal(err)
				}
				_ = mark("command")
				if err := in.Destroy(b.Context()); err != nil {
					b.Fatal(err)
				}
				_ = mark("destroyed")
			}
			for point, times := range stages {
				times.report(b, point)
			}
			cycles := float64(b.N) * 1e6
			b.ReportMetric(float64(processorTime(b, unix.RUSAGE_SELF)-own)/cycles, "own-cpu-ms")
			b.ReportMetric(float64(processorTime(b, unix.RUSAGE_CHILDREN)-sandboxes)/cycles, "sandbox-cpu-ms")
		})
	}
}

func processorTime(b *testing.B, who int) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCreateWarm measures the same with a pool.
func BenchmarkCreateWarm(b *testing.B) {
	for name, image := range benchImages(b) {
		b.Run(name, func(b *testing.B) {
			p := newProvider(b, nil)
			var made laps
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				if err := p.Warm(b.Context(), numbered(i, image), 1); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				began := time.Now()
				in, err := firstOutput(b.Context(), p, numbered(i, image))
				if err != nil {
					b.Fatal(err)
				}
				made.add(began)
				b.StopTimer()
				if err := in.Destroy(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			made.report(b, "median")
		})
	}
}

// BenchmarkExec measures a further command.
func BenchmarkExec(b *testing.B) {
	in := create(b, newProvider(b, nil), sandbox.Spec{Image: smallImage(b)})
	var ran laps
	for b.Loop() {
		began := time.Now()
		if err := runIn(b.Context(), in, "/bin/true"); err != nil {
			b.Fatal(err)
		}
		ran.add(began)
	}
	ran.report(b, "median")
}

// BenchmarkCreateParallel creates 32 sandboxes concurrently.
func BenchmarkCreateParallel(b *testing.B) {
	const n = 32
	p, image := newProvider(b, nil), smallImage(b)
	var made laps
	for b.Loop() {
		began := time.Now()
		sandboxes, errs := make([]driver.Instance, n), make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { sandboxes[i], errs[i] = firstOutput(b.Context(), p, numbered(i, image)) })
		}
		wg.Wait()
		made.add(began)
		b.StopTimer()
		for _, in := range sandboxes {
			if in != nil {
				errs = append(errs, in.Destroy(b.Context()))
			}
		}
		if err := errors.Join(errs...); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	made.report(b, "median")
	b.ReportMetric(float64(n*len(made))/b.Elapsed().Seconds(), "sandboxes/s")
}

// BenchmarkFile measures writing and reading a large file.
func BenchmarkFile(b *testing.B) {
	const size = 1_000_000_000
	in := create(b, newProvider(b, nil), sandbox.Spec{Image: smallImage(b)})
	files, _ := driver.As[driver.FileSystem](in)
	write := func(b *testing.B) {
		if _, err := files.Write(b.Context(), "/tmp/big", io.LimitReader(zeros{}, size), driver.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("in", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			write(b)
		}
	})
	b.Run("out", func(b *testing.B) {
		write(b)
		b.SetBytes(size)
		for b.Loop() {
			r, _, err := files.Read(b.Context(), "/tmp/big", driver.ReadOptions{})
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.Copy(io.Discard, r)
			if err := errors.Join(err, r.Close()); err != nil || n != size {
				b.Fatal(n, err)
			}
		}
	})
}
