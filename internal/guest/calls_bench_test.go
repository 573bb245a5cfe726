package guest_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// BenchmarkExecCalls counts the system calls of a guest and its commands. They
// determine the cost of a command inside a sandbox, where each is a switch
// between processes. Unlike times, the count is the same on a busy machine,
// apart from sleeps of Go's monitor thread. It needs root and the kernel's
// trace points.
func BenchmarkExecCalls(b *testing.B) {
	for kind, set := range kinds {
		b.Run(kind, func(b *testing.B) {
			c, pid := fastClient(b)
			once(b, c, set) // starts the threads that it takes
			counters := countCalls(b, pid)
			before := sum(b, counters)
			for b.Loop() {
				once(b, c, set)
			}
			b.ReportMetric(float64(sum(b, counters)-before)/float64(b.N), "calls/op")
		})
	}
}

// once runs a program that does nothing.
func once(b *testing.B, c *guest.Client, set func(*sandbox.Command)) {
	cmd := &sandbox.Command{Args: []string{"/bin/true"}}
	set(cmd)
	p, err := c.Exec(b.Context(), cmd)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	if exit, err := p.Wait(b.Context()); err != nil || exit.Code != 0 {
		b.Fatal(exit, err)
	}
}

// countCalls makes the kernel count the system calls of all threads of a
// process and of all processes that it starts.
func countCalls(b *testing.B, pid int) (counters []int) {
	b.Helper()
	text, err := os.ReadFile("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id")
	if err != nil {
		b.Fatal(err)
	}
	point, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	threads, err := filepath.Glob("/proc/" + itoa(pid) + "/task/*")
	if err != nil {
		b.Fatal(err)
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(filepath.Base(thread))
		if err != nil {
			b.Fatal(err)
		}
		attr := &unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: point, Bits: unix.PerfBitInherit}
		fd, err := unix.PerfEventOpen(attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { unix.Close(fd) })
		counters = append(counters, fd)
	}
	return counters
}

// sum returns the calls counted so far.
func sum(b *testing.B, counters []int) (total uint64) {
	b.Helper()
	for _, fd := range counters {
		var n [8]byte
		if _, err := unix.Read(fd, n[:]); err != nil {
			b.Fatal(err)
		}
		total += binary.NativeEndian.Uint64(n[:])
	}
	return total
}
