package credential

import (
	"context"
	"sync"
)

// Cached is a secret that is requested, such as a token. Of many callers, one
// requests it. Make it with NewCached. Its methods may be called concurrently.
type Cached[T any] struct {
	single chan struct{} // held while it is requested
	mu     sync.Mutex
	now    T
}

// NewCached returns a secret that is now known, or its zero value.
func NewCached[T any](now T) *Cached[T] {
	return &Cached[T]{single: make(chan struct{}, 1), now: now}
}

// Current returns the secret that was requested last.
func (c *Cached[T]) Current() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Set replaces the secret.
func (c *Cached[T]) Set(now T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// Get returns the present secret if it is good, or else requests another.
func (c *Cached[T]) Get(ctx context.Context, good func(T) bool, request func(context.Context) (T, error)) (now T, err error) {
	if now = c.Current(); good(now) {
		return now, nil
	}
	select {
	case c.single <- struct{}{}:
		defer func() { <-c.single }()
	case <-ctx.Done():
		return now, ctx.Err()
	}
	if now = c.Current(); good(now) { // another caller was faster
		return now, nil
	}
	if now, err = request(ctx); err == nil {
		c.Set(now)
	}
	return now, err
}
