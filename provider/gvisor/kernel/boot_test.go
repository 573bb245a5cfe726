package kernel

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/gomaxprocs"
)

// collection is how much garbage there may be before it is collected, as GOGC.
func collection() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// TestCollectionIsDeferred: a kernel that starts puts collection off, and each
// time that it is told to, and always comes back to the usual.
func TestCollectionIsDeferred(t *testing.T) {
	before := debug.SetGCPercent(123)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	kernels, err := syscall.Dup(int(r.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(CollectorEnv, strconv.Itoa(kernels))
	await := func(percent uint64) {
		t.Helper()
		for collection() != percent {
			time.Sleep(time.Millisecond)
		}
	}
	deferCollection(time.Hour)
	await(deferredCollection)
	debug.SetGCPercent(123)
	if _, err := w.Write([]byte{Saving, Saving}); err != nil {
		t.Fatal(err)
	}
	await(deferredCollection)
	w.Close() // which ends who listens

	debug.SetGCPercent(123)
	t.Setenv(CollectorEnv, "")
	deferCollection(time.Millisecond)
	await(smallHeapCollection)
}

// TestRestoringRunsMoreGoroutines: a kernel that is told that it will become
// another one lets more goroutines run at once, once, and no longer than
// collection is put off.
func TestRestoringRunsMoreGoroutines(t *testing.T) {
	percent := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	before := runtime.GOMAXPROCS(0)
	gomaxprocs.SetBase(before)
	d := &deferral{usual: 100, resume: time.NewTimer(time.Hour)}
	for _, step := range []struct {
		what string
		do   func()
		more int
	}{
		{"saving", func() { d.again(time.Hour, false) }, 0},
		{"restoring", func() { d.again(time.Hour, true) }, restoringProcs},
		{"reading pages", func() { gomaxprocs.Add(128) }, restoringProcs},
		{"both", func() { d.again(time.Hour, true); d.again(time.Hour, false) }, restoringProcs},
		{"the end", d.end, 0},
		{"another end", d.end, 0},
		{"the last page", func() { gomaxprocs.Add(-128) }, 0},
	} {
		step.do()
		if got := runtime.GOMAXPROCS(0); got != before+step.more {
			t.Errorf("after %s: %d goroutines run at once, want %d and %d", step.what, got, before, step.more)
		}
	}
	if got := collection(); got != 100 {
		t.Errorf("collection at %d percent after all", got)
	}
}

// TestCollectionSuitsTheHeap: a kernel with much to remember makes no more
// garbage of it than any program, and neither is changed while collection is put off.
func TestCollectionSuitsTheHeap(t *testing.T) {
	percent := debug.SetGCPercent(smallHeapCollection)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	d := &deferral{over: true, usual: smallHeapCollection, resume: time.NewTimer(time.Hour)}
	for _, step := range []struct {
		what string
		do   func()
		want uint64
	}{
		{"little", func() { d.suit(smallHeap) }, smallHeapCollection},
		{"much", func() { d.suit(smallHeap + 1) }, largeHeapCollection},
		{"put off", func() { d.again(time.Hour, false) }, deferredCollection},
		{"little, put off", func() { d.suit(1) }, deferredCollection},
		{"the end", d.end, smallHeapCollection},
		{"put off once more", func() { d.again(time.Hour, false); d.suit(2 * smallHeap) }, deferredCollection},
		{"its end", d.end, largeHeapCollection},
	} {
		step.do()
		if got := collection(); got != step.want {
			t.Errorf("%s: collection at %d percent, want %d", step.what, got, step.want)
		}
	}
}

// TestLooksAfterEachCollection: what is remembered now is noticed, and then
// that it is not any more.
func TestLooksAfterEachCollection(t *testing.T) {
	percent := debug.SetGCPercent(smallHeapCollection)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	d := &deferral{over: true, usual: smallHeapCollection, resume: time.NewTimer(time.Hour)}
	d.afterEach()
	defer func() { // it goes on, but changes nothing any more
		d.mu.Lock()
		defer d.mu.Unlock()
		d.over = false
	}()
	await := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
			runtime.GC()
			if d.mu.Lock(); d.usual == want {
				d.mu.Unlock()
				return
			}
			d.mu.Unlock()
			if time.Now().After(deadline) {
				t.Fatalf("collection is not at %d percent", want)
			}
		}
	}
	func() {
		much := make([]byte, 2*smallHeap)
		await(largeHeapCollection)
		runtime.KeepAlive(much)
	}()
	await(smallHeapCollection)
}
