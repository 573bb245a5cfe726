// Package serial numbers what callers watch.
package serial

import (
	"sync/atomic"
	"time"
)

// Numbers gives out numbers that grow, also after a daemon was started again: the
// first is the time, in microseconds. The zero value is ready to use.
type Numbers struct{ last atomic.Int64 }

// Next returns a number that is higher than all before.
func (c *Numbers) Next() int64 {
	for {
		last := c.last.Load()
		next := max(last+1, time.Now().UnixMicro())
		if c.last.CompareAndSwap(last, next) {
			return next
		}
	}
}
