package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// The state by which systrap decides whether to spin.
//
//go:linkname spinState gvisor.dev/gvisor/pkg/sentry/platform/systrap.fastpath
var spinState byte

//go:linkname spinLatencies gvisor.dev/gvisor/pkg/sentry/platform/systrap.latencies
var spinLatencies byte

//go:linkname recordLatency gvisor.dev/gvisor/pkg/sentry/platform/systrap.(*latencyBuckets).record
func recordLatency(of unsafe.Pointer, ticks uint64)

//go:linkname endPeriod gvisor.dev/gvisor/pkg/sentry/platform/systrap.sentryOffStubOff
func endPeriod(state unsafe.Pointer)

//go:linkname stubSpins gvisor.dev/gvisor/pkg/sentry/platform/systrap.(*fastPathState).stubFastPath
func stubSpins(state unsafe.Pointer) bool

//go:linkname endSpinning gvisor.dev/gvisor/pkg/sentry/platform/systrap.(*fastPathState).disableStubFP
func endSpinning(state unsafe.Pointer) bool

// work simulates more periods of working programs than systrap ever waits for
// before it tries to spin again.
func work() {
	for range 1000 {
		for range 10 {
			recordLatency(unsafe.Pointer(&spinLatencies), 5000)
		}
		endPeriod(unsafe.Pointer(&spinState))
	}
}

// TestSpinsOnSpareProcessors checks that a kernel reads the load after a number
// of system calls of any kind, and that gVisor spins only if few threads run.
func TestSpinsOnSpareProcessors(t *testing.T) {
	load, err := os.Create(filepath.Join(t.TempDir(), "loadavg"))
	if err != nil {
		t.Fatal(err)
	}
	defer load.Close()
	t.Cleanup(func() {
		neverSpin = false
		for !endSpinning(unsafe.Pointer(&spinState)) {
		}
	})
	made := 0
	s := &spare{load: int(load.Fd()), most: 4}
	call := s.lookOnCalls(func(*kernel.Task, uintptr, arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		made++
		return 0, nil, nil
	})
	calls := func(text string) {
		t.Helper()
		if err := os.WriteFile(load.Name(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for range callsPerLook {
			if _, _, err := call(nil, 0, arch.SyscallArguments{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls("20.10 3.04 1.00 5/1342 99\n")
	if !neverSpin {
		t.Fatal("a kernel may spin where others wait for a processor")
	}
	calls("what is this\n")
	calls("")
	if !neverSpin {
		t.Fatal("a malformed load changed it")
	}
	if work(); stubSpins(unsafe.Pointer(&spinState)) {
		t.Fatal("gVisor spins all the same")
	}
	calls("20.10 3.04 1.00 4/1342 99\n")
	if neverSpin {
		t.Fatal("a kernel may not spin although processors are idle")
	}
	if work(); !stubSpins(unsafe.Pointer(&spinState)) {
		t.Fatal("gVisor does not spin where it may")
	}
	if want := 4 * callsPerLook; made != want {
		t.Errorf("%d calls were made, want %d", made, want)
	}
}

// TestEachCallIsReplaced checks that all system calls that a program can make
// are replaced, and that none is added.
func TestEachCallIsReplaced(t *testing.T) {
	mark := fmt.Errorf("the mark of this test")
	before := make(map[*kernel.SyscallTable]map[uintptr]kernel.Syscall)
	for _, table := range kernel.SyscallTables() {
		before[table] = make(map[uintptr]kernel.Syscall)
		for number, call := range table.Table {
			before[table][number] = call
		}
	}
	t.Cleanup(func() {
		for table, calls := range before {
			table.Table = calls
			table.Init()
		}
	})
	if len(before) == 0 {
		t.Fatal("there are no system calls at all")
	}
	replaceAll(func(kernel.SyscallFn) kernel.SyscallFn {
		return func(*kernel.Task, uintptr, arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			return 0, nil, mark
		}
	})
	for table, calls := range before {
		if len(table.Table) != len(calls) {
			t.Errorf("%d system calls, and %d before", len(table.Table), len(calls))
		}
		for number := range calls {
			if _, _, err := table.Lookup(number)(nil, number, arch.SyscallArguments{}); err != mark {
				t.Errorf("system call %d is not replaced", number)
			}
		}
	}
}
