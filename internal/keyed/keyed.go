// Package keyed serialises work on one object at a time, by its id.
package keyed

import (
	"context"
	"sync"
)

// Locks provides one lock per id. The zero value is ready to use.
type Locks[ID ~string] struct {
	mu   sync.Mutex
	held map[ID]chan struct{}
}

// Take waits for the lock of an id. The caller calls release.
func (l *Locks[ID]) Take(ctx context.Context, id ID) (release func(), err error) {
	for {
		l.mu.Lock()
		other := l.held[id]
		if other == nil {
			mine := make(chan struct{})
			if l.held == nil {
				l.held = map[ID]chan struct{}{}
			}
			l.held[id] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, id)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Inflight is the set of objects that this process is creating, by id. The zero
// value is ready to use.
type Inflight[ID ~string] struct {
	mu   sync.Mutex
	made map[ID]chan struct{}
}

// Begin adds an id until end is called.
func (f *Inflight[ID]) Begin(id ID) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made == nil {
		f.made = map[ID]chan struct{}{}
	}
	done := make(chan struct{})
	f.made[id] = done
	return func() {
		f.mu.Lock()
		delete(f.made, id)
		f.mu.Unlock()
		close(done)
	}
}

// Wait waits until the object with that id is no longer being created.
func (f *Inflight[ID]) Wait(ctx context.Context, id ID) error {
	f.mu.Lock()
	done := f.made[id]
	f.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Has reports whether the object with that id is being created.
func (f *Inflight[ID]) Has(id ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[id] != nil
}
