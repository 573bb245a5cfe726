package kernel

import (
	"runtime"
	"sync"
	_ "unsafe" // for go:linkname
)

// usualProcs is how many goroutines may run at once as gVisor counts, or 0 while
// it does not change that itself.
//
//go:linkname usualProcs gvisor.dev/gvisor/pkg/gomaxprocs.base
var usualProcs int

// usualProcsMu guards it.
//
//go:linkname usualProcsMu gvisor.dev/gvisor/pkg/gomaxprocs.mu
var usualProcsMu sync.Mutex

// lentProcs is that more goroutines may run than usually.
type lentProcs struct{ usual int }

// lend lets more goroutines run at once until end is called, and keeps gVisor
// from changing how many. It would let 128 more run while it reads pages, as many
// as it has readers: the world stops for that twice while everybody waits, what a
// processor needs is allocated 128 times, and on the machine's few processors so
// many readers leave no time to the first command.
func (l *lentProcs) lend(more int) {
	usualProcsMu.Lock()
	defer usualProcsMu.Unlock()
	if usualProcs == 0 {
		return // lent already, or not a kernel
	}
	l.usual, usualProcs = usualProcs, 0
	runtime.GOMAXPROCS(l.usual + more)
}

// end ends that, if lend was called.
func (l *lentProcs) end() {
	usualProcsMu.Lock()
	defer usualProcsMu.Unlock()
	if l.usual == 0 {
		return
	}
	runtime.GOMAXPROCS(l.usual)
	l.usual, usualProcs = 0, l.usual
}
