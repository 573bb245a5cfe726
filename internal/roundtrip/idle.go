package roundtrip

import (
	"sync"
	"time"
)

// idle are connections that nobody uses, the last one used at the end. The zero
// value is ready.
type idle struct {
	mu    sync.Mutex
	conns []*conn
	sweep *time.Timer // nil, or running while there are any
}

// take returns a connection that its other end has not closed, nil if there is
// none.
func (i *idle) take() *conn {
	for {
		i.mu.Lock()
		last := len(i.conns) - 1
		if last < 0 {
			i.mu.Unlock()
			return nil
		}
		c := i.conns[last]
		i.conns[last] = nil
		i.conns = i.conns[:last]
		i.mu.Unlock()
		if quiet(c.Conn) {
			return c
		}
		_ = c.Close()
	}
}

// put keeps a connection for a while.
func (i *idle) put(c *conn) {
	c.kept = time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.conns) >= maxIdle {
		_ = c.Close()
		return
	}
	i.conns = append(i.conns, c)
	if i.sweep == nil {
		i.sweep = time.AfterFunc(idleTime, i.expire)
	}
}

// expire closes what was not used for long.
func (i *idle) expire() {
	i.mu.Lock()
	defer i.mu.Unlock()
	old := 0
	for old < len(i.conns) && time.Since(i.conns[old].kept) >= idleTime {
		_ = i.conns[old].Close()
		old++
	}
	i.conns = append(i.conns[:0:0], i.conns[old:]...)
	i.sweep = nil
	if len(i.conns) > 0 {
		i.sweep = time.AfterFunc(idleTime, i.expire)
	}
}

// close closes all.
func (i *idle) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, c := range i.conns {
		_ = c.Close()
	}
	i.conns = nil
	if i.sweep != nil {
		i.sweep.Stop()
		i.sweep = nil
	}
}
