package kernel

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// delayedGOGC is the GOGC of a kernel that saves or restores: a heap of some
	// 5 MB grows to 45 MB first. The limit that GOMEMLIMIT sets still holds.
	delayedGOGC     = 800
	collectionDelay = time.Second
)

// collection is the kernel's garbage collection. Saving and restoring a kernel
// of 6 MB allocates some 10 MB within milliseconds, while a sandbox is stopped
// or a caller waits for it.
type collection struct {
	mu     sync.Mutex
	usual  int // GOGC before putOff
	resume *time.Timer
}

// putOff delays garbage collection. After the delay it runs once.
func (c *collection) putOff(delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resume != nil {
		c.resume.Reset(delay)
		return
	}
	c.usual = debug.SetGCPercent(delayedGOGC)
	c.resume = time.AfterFunc(delay, c.end)
}

func (c *collection) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resume == nil {
		return
	}
	c.resume = nil
	debug.SetGCPercent(c.usual)
	runtime.GC()
}
