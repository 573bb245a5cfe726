package kernel

import (
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func gogc() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// TestCollectionIsPutOff checks that GOGC is raised until the delay ends, and
// that a second call prolongs the delay and keeps the usual value.
func TestCollectionIsPutOff(t *testing.T) {
	before := debug.SetGCPercent(123)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	var c collection
	for range 2 {
		c.putOff(time.Hour)
		if got := gogc(); got != delayedGOGC {
			t.Fatalf("GOGC is %d while collection is put off, want %d", got, delayedGOGC)
		}
	}
	c.putOff(time.Millisecond)
	for deadline := time.Now().Add(time.Minute); gogc() != 123; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("GOGC is %d after the delay, want 123", gogc())
		}
	}
}
