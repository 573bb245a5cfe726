package kernel

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
	_ "unsafe" // for go:linkname
)

// This file spares a starting kernel work that it does not need.

// tracePoints is what gVisor builds the list of its trace points with.
//
//go:linkname tracePoints gvisor.dev/gvisor/pkg/sentry/seccheck.initOnce
var tracePoints sync.Once

// skipTracePoints leaves that list empty. It has an entry for every system
// call, costs 5 ms and several megabytes of every start, and serves trace
// sessions, of which Atoll makes none: a kernel refuses them now.
func skipTracePoints() { tracePoints.Do(func() {}) }

const (
	bootCollection = 800 // percent, as GOGC: no collection before 32 MB
	bootTime       = time.Second
)

// deferCollection keeps the garbage collector from running while the sandbox
// starts, when it would find little and everybody waits. It runs once soon
// after that, so as not to begin with the first command of a sandbox that has
// waited for one, and from then on as in any program.
func deferCollection() {
	usual := debug.SetGCPercent(bootCollection)
	time.AfterFunc(bootTime, func() {
		debug.SetGCPercent(usual)
		runtime.GC()
	})
}
