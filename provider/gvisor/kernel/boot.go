package kernel

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"
	_ "unsafe" // for go:linkname
)

// This file spares a kernel work that it does not need, or not while somebody
// waits.

// tracePoints is what gVisor builds the list of its trace points with.
//
//go:linkname tracePoints gvisor.dev/gvisor/pkg/sentry/seccheck.initOnce
var tracePoints sync.Once

// skipTracePoints leaves that list empty. It has an entry for every system
// call, costs 5 ms and several megabytes of every start, and serves trace
// sessions, of which Atoll makes none: a kernel refuses them now.
func skipTracePoints() { tracePoints.Do(func() {}) }

const (
	deferredCollection = 800 // percent, as GOGC: none before 32 MB
	deferredTime       = time.Second
)

// CollectorEnv is the variable that says which descriptor a kernel is told by to
// put collection off once more: each byte that arrives there says so.
const CollectorEnv = "ATOLL_COLLECTOR"

// deferCollection keeps the garbage collector from running for a moment while
// the sandbox starts, when it would find little and everybody waits, and again
// whenever a byte arrives. It runs once after that, so as not to begin with the
// first command of a sandbox that has waited for one, and from then on as in
// any program.
func deferCollection(moment time.Duration) {
	usual := debug.SetGCPercent(deferredCollection)
	resume := time.AfterFunc(moment, func() {
		debug.SetGCPercent(usual)
		runtime.GC()
	})
	fd, err := strconv.Atoi(os.Getenv(CollectorEnv))
	if err != nil {
		return
	}
	go func() {
		told := os.NewFile(uintptr(fd), "collector")
		b := make([]byte, 64)
		for {
			if _, err := told.Read(b); err != nil {
				return
			}
			debug.SetGCPercent(deferredCollection)
			resume.Reset(moment)
		}
	}()
}
