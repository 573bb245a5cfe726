package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon/node"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/sandbox"
)

// benchDaemon starts the real program as a daemon. It returns a client, a
// provider that finds the daemon's sandboxes without it, and the daemon's
// process.
func benchDaemon(b *testing.B) (*atoll.Client, driver.Provider, int) {
	b.Helper()
	state := filepath.Join(b.TempDir(), "state")
	b.Setenv("ATOLL_KERNEL", built.atoll)
	s := &soaker{bin: built.atoll, env: append(os.Environ(), "ATOLL_STATE_DIR="+state)}
	s.start(b)
	b.Cleanup(func() {
		s.kill()
		rm := exec.Command(built.atoll, "rm", "--force", "--all")
		rm.Env = s.env
		if out, err := rm.CombinedOutput(); err != nil {
			b.Errorf("%v: %s", err, out)
		}
	})
	client, err := atoll.New(atoll.Options{Host: "unix://" + filepath.Join(state, atoll.SocketName)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	n, err := node.Open(state, all.Builtin(), os.LookupEnv)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = n.Close() })
	p, err := n.Providers().Open(context.Background(), "gvisor")
	if err != nil {
		b.Fatal(err)
	}
	return client, p.Provider, s.daemon.Process.Pid
}

func direct(ctx context.Context, in driver.Instance, program string) error {
	p, err := in.Exec(ctx, &sandbox.Command{Args: []string{program}})
	if err != nil {
		return err
	}
	_, err = p.Wait(ctx)
	_ = p.Close()
	return err
}

func throughAPI(ctx context.Context, s *atoll.Sandbox, program string) error {
	_, err := s.Run(ctx, sandbox.Command{Args: []string{program}}, atoll.RunOptions{})
	return err
}

// The programs to run: one of the image, dynamically linked like most programs,
// and a static one that gives the kernel little work, so that the cost of the
// guest and the daemon is visible.
const (
	dynamicProgram = "/bin/true"
	staticProgram  = "/tmp/static-true"
)

// staticTrue returns an executable file that only exits.
func staticTrue(b *testing.B) []byte {
	b.Helper()
	dir := b.TempDir()
	source, program := filepath.Join(dir, "true.c"), filepath.Join(dir, "true")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O2", "-static", "-s", "-o", program, source).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		b.Fatal(err)
	}
	return content
}

// putStatic writes the program into a sandbox.
func putStatic(ctx context.Context, s *atoll.Sandbox, program []byte) error {
	_, err := s.Files().Write(ctx, staticProgram, bytes.NewReader(program), atoll.WriteOptions{Mode: 0o755})
	return err
}

func median(laps []time.Duration) float64 {
	slices.Sort(laps)
	return float64(laps[len(laps)/2].Nanoseconds()) / 1e6
}

// BenchmarkDaemonExec runs a command in one sandbox alternately through the
// driver and through the API. The difference of the medians is the daemon's
// cost: connection, authorisation, record and answer.
func BenchmarkDaemonExec(b *testing.B) {
	c, p, pid := benchDaemon(b)
	ctx := context.Background()
	s, err := c.Create(ctx, sandbox.Spec{Name: "bench"}, atoll.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	in, err := p.Attach(ctx, s.ID())
	if err != nil {
		b.Fatal(err)
	}
	var library, api []time.Duration
	for b.Loop() {
		for f, to := range map[int]*[]time.Duration{0: &library, 1: &api} {
			began := time.Now()
			if f == 0 {
				err = direct(ctx, in, dynamicProgram)
			} else {
				err = throughAPI(ctx, s, dynamicProgram)
			}
			if err != nil {
				b.Fatal(err)
			}
			*to = append(*to, time.Since(began))
		}
	}
	b.ReportMetric(median(library), "library-ms")
	b.ReportMetric(median(api), "api-ms")
	b.ReportMetric(median(api)-median(library), "overhead-ms")
	b.ReportMetric(residentMB(b, pid), "daemon-MB")
}

// BenchmarkDaemonExecCost measures processor time, which other load on the
// machine affects little: of starting a program in a loop of the sandbox's
// shell, the minimum, and through the API, which adds the guest and the daemon.
func BenchmarkDaemonExecCost(b *testing.B) {
	for name, program := range map[string]string{"dynamic": dynamicProgram, "static": staticProgram} {
		b.Run(name, func(b *testing.B) { execCost(b, program) })
	}
}

func execCost(b *testing.B, program string) {
	const times = 100
	c, _, pid := benchDaemon(b)
	ctx := context.Background()
	s, err := c.Create(ctx, sandbox.Spec{Name: "bench"}, atoll.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	if err := putStatic(ctx, s, staticTrue(b)); err != nil {
		b.Fatal(err)
	}
	inside := func(do func() error) float64 {
		before, err := s.Usage(ctx)
		if err == nil {
			err = do()
		}
		if err != nil {
			b.Fatal(err)
		}
		after, err := s.Usage(ctx)
		if err != nil {
			b.Fatal(err)
		}
		return (after.CPU - before.CPU).Seconds() * 1000 / times
	}
	loop := func() error {
		_, err := s.Run(ctx, sandbox.Command{Shell: fmt.Sprintf("i=0; while [ $i -lt %d ]; do %s; i=$((i+1)); done", times, program)}, atoll.RunOptions{})
		return err
	}
	execs := func() error {
		for range times {
			if err := throughAPI(ctx, s, program); err != nil {
				return err
			}
		}
		return nil
	}
	if err := execs(); err != nil { // warm up
		b.Fatal(err)
	}
	var floor, api, daemon []float64
	for b.Loop() {
		floor = append(floor, inside(loop))
		before := processorMS(b, pid)
		api = append(api, inside(execs))
		daemon = append(daemon, (processorMS(b, pid)-before)/times)
	}
	for name, figures := range map[string][]float64{"floor-cpu-ms": floor, "exec-cpu-ms": api, "daemon-cpu-ms": daemon} {
		slices.Sort(figures)
		b.ReportMetric(figures[len(figures)/2], name)
	}
}

// processorMS returns the processor time that all threads of a process have
// used.
func processorMS(b *testing.B, pid int) float64 {
	b.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		b.Fatalf("no threads: %v", err)
	}
	total := 0.0
	for _, file := range threads {
		var ns float64
		if text, err := os.ReadFile(file); err == nil { // a thread may just have ended
			_, _ = fmt.Sscan(string(text), &ns)
		}
		total += ns / 1e6
	}
	return total
}

// allProcessorMS returns the processor time that sandboxes, a daemon and this
// process have used.
func allProcessorMS(b *testing.B, sandboxes []*atoll.Sandbox, daemon int) float64 {
	b.Helper()
	total := processorMS(b, daemon) + processorMS(b, os.Getpid())
	for _, s := range sandboxes {
		u, err := s.Usage(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		total += u.CPU.Seconds() * 1000
	}
	return total
}

// BenchmarkDaemonThroughput runs commands with one client per sandbox, first
// through the driver and then through the API. On a shared machine the
// processor time per command of sandbox, daemon and client is more meaningful
// than the rate.
func BenchmarkDaemonThroughput(b *testing.B) {
	const sandboxes, lap = 50, 5 * time.Second
	c, p, pid := benchDaemon(b)
	ctx := context.Background()
	b.ReportMetric(residentMB(b, pid), "idle-MB")
	static := staticTrue(b)
	var ready []*atoll.Sandbox
	var instances []driver.Instance
	for i := range sandboxes {
		s, err := c.Create(ctx, sandbox.Spec{Name: fmt.Sprint("bench", i), Resources: sandbox.Resources{Memory: 256 << 20}}, atoll.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := putStatic(ctx, s, static); err != nil {
			b.Fatal(err)
		}
		in, err := p.Attach(ctx, s.ID())
		if err != nil {
			b.Fatal(err)
		}
		ready, instances = append(ready, s), append(instances, in)
	}
	for b.Loop() {
		rate := func(name string, run func(i int) error) {
			before := allProcessorMS(b, ready, pid)
			laps := flood(b, sandboxes, lap, run)
			b.ReportMetric((allProcessorMS(b, ready, pid)-before)/float64(len(laps)), name+"-cpu-ms")
			b.ReportMetric(float64(len(laps))/lap.Seconds(), name+"/s")
			b.ReportMetric(median(laps), name+"-median-ms")
		}
		for name, program := range map[string]string{"": dynamicProgram, "static-": staticProgram} {
			rate(name+"library", func(i int) error { return direct(ctx, instances[i], program) })
			rate(name+"api", func(i int) error { return throughAPI(ctx, ready[i], program) })
		}
	}
	b.ReportMetric(residentMB(b, pid), "daemon-MB")
}

// flood runs a function in several goroutines for a while.
func flood(b *testing.B, workers int, d time.Duration, run func(i int) error) (all []time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for i := range workers {
		wg.Go(func() {
			var own []time.Duration
			for time.Now().Before(end) {
				began := time.Now()
				if err := run(i); err != nil {
					b.Error(err)
					return
				}
				own = append(own, time.Since(began))
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all
}

// residentMB returns the proportional set size of a process.
func residentMB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	var kb float64
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "Pss: %f kB", &kb); err == nil {
			return kb / 1024
		}
	}
	b.Fatal("no proportional set size")
	return 0
}
