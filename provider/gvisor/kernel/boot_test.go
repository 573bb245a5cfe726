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
	await(123)
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
