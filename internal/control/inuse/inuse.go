// Package inuse notes which sandboxes are in use, so that none is paused or stopped
// under its users.
package inuse

import (
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Sandboxes are the sandboxes that are in use, or have been since the daemon
// started. The zero value is ready to use. It is safe for concurrent use.
type Sandboxes struct {
	mu          sync.Mutex
	sandboxes   map[sandbox.ID]*use
	suspensions Mark // number of calls of Suspend
}

type use struct {
	open      int       // number of open handles
	last      time.Time // when a handle was last opened or closed
	closing   chan struct{}
	suspended Mark // of the last call of Suspend
}

// Mark is a point in the sequence of suspensions.
type Mark uint64

// Mark returns the current point, for SuspendedSince.
func (u *Sandboxes) Mark() Mark {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.suspensions
}

// Suspend notes that a sandbox is being paused or stopped. The caller holds the
// sandbox's lock. It has recorded the transitional state, and has not yet
// changed the sandbox.
func (u *Sandboxes) Suspend(id sandbox.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.suspensions++
	u.get(id).suspended = u.suspensions
}

// SuspendedSince reports whether Suspend was called for a sandbox after a mark.
// If it was not, a record read after the mark was still true when
// SuspendedSince was called.
func (u *Sandboxes) SuspendedSince(id sandbox.ID, seen Mark) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.sandboxes[id]
	return b != nil && b.suspended > seen
}

func (u *Sandboxes) get(id sandbox.ID) *use {
	if u.sandboxes == nil {
		u.sandboxes = map[sandbox.ID]*use{}
	}
	if u.sandboxes[id] == nil {
		u.sandboxes[id] = &use{}
	}
	return u.sandboxes[id]
}

// Begin counts a use until leave is called. If the sandbox is being paused,
// closing is closed when that is over.
func (u *Sandboxes) Begin(id sandbox.ID, now func() time.Time) (closing <-chan struct{}, leave func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.get(id)
	b.open++
	b.last = now()
	return b.closing, sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		b.open--
		b.last = now()
	})
}

// Close begins to pause a sandbox that was not used since a time: new uses wait
// until reopen is called. If the sandbox is in use or was used since, Close
// returns false and the time of the last use, which is now for a current use.
func (u *Sandboxes) Close(id sandbox.ID, since, now time.Time) (reopen func(), last time.Time, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.get(id)
	if b.last.After(now) {
		b.last = now // the clock was set back
	}
	switch {
	case b.open > 0 || b.closing != nil:
		return nil, now, false
	case b.last.After(since):
		return nil, b.last, false
	}
	closing := make(chan struct{})
	b.closing = closing
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		b.closing = nil
		close(closing)
	}, b.last, true
}

// Forget removes a sandbox that is gone.
func (u *Sandboxes) Forget(id sandbox.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if b := u.sandboxes[id]; b != nil && b.open == 0 && b.closing == nil {
		delete(u.sandboxes, id)
	}
}
