package serial_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/serial"
)

// Numbers grow, also when many are taken at one moment, and those of a later daemon are
// higher.
func TestNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n serial.Numbers
		first := n.Next()
		if now := time.Now().UnixMicro(); first != now {
			t.Errorf("the first is %d, want the time, %d", first, now)
		}
		if second := n.Next(); second != first+1 {
			t.Errorf("the second at the same moment is %d, want %d", second, first+1)
		}
		const takers, each = 8, 100
		var mu sync.Mutex
		seen := map[int64]bool{}
		var wg sync.WaitGroup
		for range takers {
			wg.Go(func() {
				last := int64(0)
				for range each {
					got := n.Next()
					if got <= last {
						t.Errorf("%d follows %d, want it higher", got, last)
					}
					last = got
					mu.Lock()
					seen[got] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(seen) != takers*each {
			t.Errorf("%d different numbers were given, want %d", len(seen), takers*each)
		}
		time.Sleep(time.Second)
		var later serial.Numbers
		if got := later.Next(); got < first+time.Second.Microseconds() {
			t.Errorf("a later daemon begins with %d, want it at least a second after %d", got, first)
		}
	})
}
