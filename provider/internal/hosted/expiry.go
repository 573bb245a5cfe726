package hosted

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// again is the delay before another attempt to end a sandbox.
const again = 10 * time.Second

// Expiry ends sandboxes for a service without lifetimes. Every process that has
// opened the records ends sandboxes at their deadlines. The record stays and
// contains the reason. Its methods may be called concurrently.
type Expiry struct {
	Sandboxes Records
	// Erase ends a sandbox. It succeeds if the sandbox is gone.
	Erase func(ctx context.Context, id sandbox.ID, sb string) error

	mu     sync.Mutex
	timers map[sandbox.ID]*time.Timer
	closed bool
	work   sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

// Watch ends a sandbox at a time, unless its record then has another time. The
// zero time means never.
func (e *Expiry) Watch(id sandbox.ID, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || at.IsZero() {
		return
	}
	if e.timers == nil {
		e.timers = map[sandbox.ID]*time.Timer{}
		e.ctx, e.cancel = context.WithCancel(context.Background())
	}
	if t := e.timers[id]; t != nil {
		t.Stop()
	}
	e.timers[id] = time.AfterFunc(time.Until(at), func() { e.expire(id) })
}

// WatchAll watches all sandboxes whose bindings are ours.
func (e *Expiry) WatchAll(ours func(binding string) bool) {
	for _, id := range e.Sandboxes.IDs() {
		if r, ok := e.Sandboxes.Get(id); ok && ours(r.Binding) && !r.Destroying && !r.Over {
			e.Watch(sandbox.ID(id), r.Ends)
		}
	}
}

func (e *Expiry) expire(id sandbox.ID) {
	e.mu.Lock()
	closed := e.closed
	delete(e.timers, id)
	if !closed {
		e.work.Add(1)
	}
	e.mu.Unlock()
	if closed {
		return
	}
	defer e.work.Done()
	if err := e.end(id); err != nil {
		e.Watch(id, time.Now().Add(again))
	}
}

func (e *Expiry) end(id sandbox.ID) error {
	ctx, cancel := context.WithTimeout(e.ctx, making)
	defer cancel()
	if r, ok := e.Sandboxes.Get(string(id)); !ok || r.ServiceID == "" {
		return nil // it was destroyed
	}
	l, err := e.Sandboxes.Lock(ctx, string(id))
	if err != nil {
		return err
	}
	defer l.Unlock()
	r := l.Read()
	switch {
	case r.ServiceID == "": // destroyed meanwhile
		return l.Remove()
	case r.Destroying || r.Over || r.AdoptedElsewhere || r.Ends.IsZero():
		return nil
	case time.Now().Before(r.Ends):
		e.Watch(id, r.Ends)
		return nil
	}
	if err := e.Erase(ctx, id, r.ServiceID); err != nil {
		return err
	}
	r.Over = true
	return l.Write(r)
}

// Close stops watching and waits for sandboxes that are being ended.
func (e *Expiry) Close() {
	e.mu.Lock()
	e.closed = true
	for _, t := range e.timers {
		t.Stop()
	}
	if e.cancel != nil {
		e.cancel()
	}
	e.mu.Unlock()
	e.work.Wait()
}
