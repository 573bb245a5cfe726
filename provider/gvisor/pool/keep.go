package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
)

// The pool's size follows the requests. A shape that was requested twice
// recently is expected again; one that is no longer requested is dropped.
const (
	remembered = 5 * time.Minute        // how long a request is remembered
	burst      = time.Minute            // requests within this time may come together again
	pause      = 100 * time.Millisecond // idle time before a sandbox is made
	tick       = 5 * time.Second        // interval of checking the machine's memory
)

// keep makes sandboxes until ctx ends.
func (l *Pool[S]) keep(ctx context.Context) {
	for {
		err := l.keepGuarded(ctx)
		if ctx.Err() != nil {
			return
		}
		// The sandboxes could outlive this process, so there are none without a guard.
		l.Drain()
		l.off.Store(&err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(tick):
		}
	}
}

// keepGuarded makes sandboxes until ctx or the guard ends.
func (l *Pool[S]) keepGuarded(ctx context.Context) error {
	unguarded, stop, err := l.maker.Guard()
	if err != nil {
		return fmt.Errorf("its guard cannot be started: %w", err)
	}
	defer stop()
	l.off.Store(nil)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-unguarded:
			return errors.New("its guard ended")
		case <-ticker.C:
		case <-l.idle:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		for l.keepOne(ctx) {
		}
	}
}

// keepOne makes one sandbox or ends surplus ones, and reports whether there may
// be more to do.
func (l *Pool[S]) keepOne(ctx context.Context) bool {
	if l.maker.LowMemory() {
		l.Drain()
		return false
	}
	l.making.Lock()
	defer l.making.Unlock()
	s, image, from, surplus := l.next(time.Now())
	for _, sandbox := range surplus {
		sandbox.Undo()
	}
	if image == "" || ctx.Err() != nil {
		return false
	}
	defer from.Close()
	sandbox, err := l.maker.Make(ctx, s, image, from)
	if err != nil {
		l.forget(s)
		return true
	}
	if !l.Put(s, "", sandbox) {
		sandbox.Undo()
		return false
	}
	return true
}

// next returns the shape to make next, with an empty image if there is none, and
// the sandboxes to end.
func (l *Pool[S]) next(now time.Time) (what Shape, image string, from *snapshot.Saved, surplus []S) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy > 0 || l.closed {
		return what, "", nil, nil
	}
	ready := 0
	var best *set[S]
	var order [3]int
	for s, sh := range l.shapes {
		want := sh.want(now)
		if len(sh.asked) == 0 && len(sh.ready) == 0 {
			sh.from.Close()
			delete(l.shapes, s)
			continue
		}
		if sh.kept {
			surplus = append(surplus, sh.drop(len(sh.ready)-want)...)
		}
		ready += len(sh.ready)
		lack := want - len(sh.ready)
		// Among incomplete sets, prefer the one with the fewest ready, then the
		// largest deficit, then the most advanced stage.
		if o := [3]int{-len(sh.ready), lack, int(s.Stage)}; lack > 0 && (best == nil || slices.Compare(o[:], order[:]) > 0) {
			what, best, order = s, sh, o
		}
	}
	if best == nil {
		return what, "", nil, surplus
	}
	if ready >= l.most {
		lesser := l.lesser(best)
		if lesser == nil {
			return what, "", nil, surplus
		}
		surplus = append(surplus, lesser.drop(1)...)
	}
	best.kept = true
	return what, best.image, best.from.Share(), surplus
}

// lesser returns a set that should give up a sandbox for than: it has at least
// two more, or than has none and was requested later.
func (l *Pool[S]) lesser(than *set[S]) (least *set[S]) {
	for _, sh := range l.shapes {
		switch {
		case !sh.kept || len(sh.ready) == 0:
		case len(sh.ready) >= len(than.ready)+2:
			return sh
		case len(than.ready) == 0 && sh.last().Before(than.last()) && (least == nil || sh.last().Before(least.last())):
			least = sh
		}
	}
	return least
}

// last returns the time of the last request.
func (sh *set[S]) last() time.Time {
	if len(sh.asked) == 0 {
		return time.Time{}
	}
	return sh.asked[len(sh.asked)-1]
}

// drop removes n sandboxes, if n is positive.
func (sh *set[S]) drop(n int) (dropped []S) {
	n = max(n, 0)
	dropped, sh.ready = sh.ready[:n], sh.ready[n:]
	return dropped
}

// want returns how many sandboxes of a shape should be ready: as many as were
// requested in a burst, and one for a while after that.
func (sh *set[S]) want(now time.Time) (n int) {
	if sh.from.Removed() {
		sh.asked = nil
	}
	for len(sh.asked) > 0 && now.Sub(sh.asked[0]) > remembered {
		sh.asked = sh.asked[1:]
	}
	for _, at := range sh.asked {
		if now.Sub(at) < burst {
			n++
		}
	}
	if sh.from != nil && len(sh.asked) < 2 {
		return 0 // most snapshots are restored only once
	}
	return max(n, min(1, len(sh.asked)))
}

// forget drops a shape that cannot be created.
func (l *Pool[S]) forget(s Shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sh := l.shapes[s]; sh != nil {
		sh.asked = nil
	}
}
