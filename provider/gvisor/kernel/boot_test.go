package kernel

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"syscall"
	"testing"
	"time"
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
	if _, err := w.Write([]byte{0, 0}); err != nil {
		t.Fatal(err)
	}
	await(deferredCollection)
	w.Close() // which ends who listens

	debug.SetGCPercent(123)
	t.Setenv(CollectorEnv, "")
	deferCollection(time.Millisecond)
	await(123)
}
