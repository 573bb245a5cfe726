package kernel

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// A kernel that has little to remember, as most have, would collect garbage
// every few commands: some 5 MB live, and each command makes several hundred
// kilobytes of garbage. So the garbage may be more while the heap is small, and
// from some size on no more than in any program, since all of it counts in the
// sandbox's memory.
const (
	smallHeap = 16 << 20 // bytes that live

	smallHeapCollection = 300 // percent, as GOGC
	largeHeapCollection = 100
)

// cycle is what a collection finds to be garbage. It has a pointer so that Go
// gives it a place of its own.
type cycle struct{ _ *cycle }

// afterEach looks at the heap after each collection.
func (d *deferral) afterEach() {
	runtime.SetFinalizer(new(cycle), func(*cycle) {
		d.suit(liveHeap())
		d.afterEach()
	})
}

// suit has garbage collected as suits a heap of so many bytes. To change that
// stops the kernel for a moment.
func (d *deferral) suit(live uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := smallHeapCollection
	if live > smallHeap {
		want = largeHeapCollection
	}
	if want == d.usual {
		return
	}
	d.usual = want
	if d.over {
		debug.SetGCPercent(want)
	}
}

// liveHeap is how much the last collection has found to be alive, in bytes.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
