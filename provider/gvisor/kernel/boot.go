package kernel

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
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

	// restoringProcs is how many goroutines more may run at once while a kernel
	// becomes another one. Some of those that run then do nothing but wait in a
	// call of the host, for a file server or for the end of its connection, and
	// Go takes up to 10 ms to notice that.
	restoringProcs = 2
)

// CollectorEnv is the variable that says which descriptor a kernel is told by
// what it will do next: each byte that arrives there says so.
const CollectorEnv = "ATOLL_COLLECTOR"

// What a kernel is told.
const (
	Saving    = 0 // it will write its state down: collection is to be put off once more
	Restoring = 1 // it will become another kernel: the same, and more goroutines are to run at once
)

// deferral is that collection is put off.
type deferral struct {
	mu     sync.Mutex
	over   bool
	usual  int         // percent
	resume *time.Timer // ends it
	procs  lentProcs   // while it becomes another kernel
}

// deferCollection keeps the garbage collector from running for a moment while
// the sandbox starts, when it would find little and everybody waits, and again
// whenever a byte arrives. It runs once after that, so as not to begin with the
// first command of a sandbox that has waited for one, and from then on as
// suits the size of the heap.
func deferCollection(moment time.Duration) {
	debug.SetGCPercent(deferredCollection)
	d := &deferral{usual: smallHeapCollection}
	d.resume = time.AfterFunc(moment, d.end)
	d.afterEach()
	fd, err := strconv.Atoi(os.Getenv(CollectorEnv))
	if err != nil {
		return
	}
	go func() {
		told := os.NewFile(uintptr(fd), "collector")
		b := make([]byte, 64)
		for {
			n, err := told.Read(b)
			if err != nil {
				return
			}
			d.again(moment, slices.Contains(b[:n], Restoring))
			if k := running.Load(); k != nil && slices.Contains(b[:n], Saving) {
				lighten(k)
			}
		}
	}()
}

// again begins it anew.
func (d *deferral) again(moment time.Duration, restoring bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = false
	debug.SetGCPercent(deferredCollection)
	if restoring {
		d.procs.lend(restoringProcs)
	}
	d.resume.Reset(moment)
}

func (d *deferral) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	d.procs.end()
	debug.SetGCPercent(d.usual)
	runtime.GC()
}
