package kernel

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// LoadEnv is the variable that says which descriptor tells a kernel what the
// machine has to do: /proc/loadavg, which a kernel does not see itself.
const LoadEnv = "ATOLL_LOAD"

const (
	// callsPerLook is how many system calls of programs pass between two looks at
	// the load. A look takes about as long as one of them, and a sandbox that
	// does nothing never looks.
	callsPerLook = 64

	// ownThreads is how many of the threads that run while a kernel looks may be
	// the sandbox's own: the one that looks, and the program's, which waits for it.
	ownThreads = 2
)

// neverSpin keeps the kernel from beginning to wait by spinning. gVisor sets it
// once, before programs run, and reads it whenever a sandbox that rested, or
// spun in vain, has worked for another moment.
//
//go:linkname neverSpin gvisor.dev/gvisor/pkg/sentry/platform/systrap.neverEnableFastPath
var neverSpin bool

// spare tells whether the machine has processors to spare.
type spare struct {
	load  int // descriptor of /proc/loadavg
	most  int // threads of the machine that may run, or wait for a processor
	calls atomic.Uint32
}

// spinOnSpare lets the kernel wait by spinning for what a program does next, and
// programs for the kernel, only while the machine has processors to spare: what
// spins where many wait for a processor is waited for itself. gVisor's own
// judgement goes by the time that an answer takes, and ends where all answers
// are late.
func spinOnSpare() {
	load, err := strconv.Atoi(os.Getenv(LoadEnv))
	if err != nil {
		return // and leaves it to gVisor
	}
	s := &spare{load: load, most: runtime.NumCPU() + ownThreads}
	replaceAll(s.lookOnCalls)
}

func (s *spare) lookOnCalls(usual kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if s.calls.Add(1)%callsPerLook == 0 {
			s.look()
		}
		return usual(t, sysno, args)
	}
}

func (s *spare) look() {
	text := make([]byte, 64)
	n, err := unix.Pread(s.load, text, 0)
	if err != nil {
		return
	}
	if n, ok := runningThreads(text[:n]); ok && neverSpin != (n > s.most) {
		neverSpin = n > s.most
	}
}

// runningThreads reads how many threads run or wait for a processor from the
// text of /proc/loadavg: "0.20 0.18 0.12 1/80 11206".
func runningThreads(text []byte) (int, bool) {
	before, _, ok := bytes.Cut(text, []byte("/"))
	n, err := strconv.Atoi(string(before[bytes.LastIndexByte(before, ' ')+1:]))
	return n, ok && err == nil
}
