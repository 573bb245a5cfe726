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

// LoadEnv is the variable that holds the number of an open descriptor of
// /proc/loadavg, which a kernel cannot open itself.
const LoadEnv = "ATOLL_LOAD"

const (
	// callsPerLook is how many system calls of programs pass between two looks at
	// the load. A look costs about as much as one of them. An idle sandbox never
	// looks.
	callsPerLook = 64

	// ownThreads is how many of the running threads are the sandbox's own: the one
	// that looks, and the program's, which waits for it.
	ownThreads = 2
)

// neverSpin keeps systrap from starting to spin. gVisor sets it once, before
// programs run, and reads it when a sandbox that was idle, or spun in vain, has
// worked for a while.
//
//go:linkname neverSpin gvisor.dev/gvisor/pkg/sentry/platform/systrap.neverEnableFastPath
var neverSpin bool

// spare tells whether the host has idle processors.
type spare struct {
	load  int // descriptor of /proc/loadavg
	most  int // threads of the host that may run or wait for a processor
	calls atomic.Uint32
}

// spinOnSpare lets the kernel and programs wait for each other by spinning only
// while the host has idle processors. gVisor decides by how long an answer takes
// compared with earlier ones, which fails where all answers are late.
func spinOnSpare() {
	load, err := strconv.Atoi(os.Getenv(LoadEnv))
	if err != nil {
		return // gVisor decides
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
