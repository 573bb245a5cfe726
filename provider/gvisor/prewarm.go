package gvisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
)

// The pool's size follows the requests. A shape that was requested twice
// recently is expected again; one that is no longer requested is dropped.
const (
	poolMemory = 5 * time.Minute        // how long a request is remembered
	poolBurst  = time.Minute            // requests within this time may come together again
	poolPause  = 100 * time.Millisecond // idle time before a sandbox is prewarmed
	poolTick   = 5 * time.Second        // interval of checking the machine's memory
	poolUnused = 10                     // percent of the memory that the pool leaves free
)

// pooled reports whether there is a pool, and starts it on the first call.
func (p *Provider) pooled() bool {
	if p.opts.Pool <= 0 {
		return false
	}
	p.pool.once.Do(func() { p.pool.work.Go(func() { p.keepPool(p.pool.ctx) }) })
	return true
}

// ask records a request for a shape.
func (l *pool) ask(s shape, ref string, from *snapshot.Saved) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	sh := l.warm(s, ref)
	sh.asked = append(sh.asked, time.Now())
	if s.from != "" && sh.from == nil {
		sh.from = from.Share()
	}
}

// begin records that a sandbox is being created for a caller, until end is
// called. The pool creates nothing meanwhile, because that would slow it down.
func (l *pool) begin() (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.busy--
		if l.busy == 0 {
			select {
			case l.idle <- struct{}{}:
			default:
			}
		}
	}
}

// keepPool prewarms sandboxes until ctx ends.
func (p *Provider) keepPool(ctx context.Context) {
	for {
		err := p.keepGuarded(ctx)
		if ctx.Err() != nil {
			return
		}
		// Prewarmed sandboxes could outlive this process, so there are none without a
		// guard.
		p.Drain()
		p.pool.off.Store(&err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(poolTick):
		}
	}
}

// keepGuarded prewarms sandboxes until ctx or the pool's guard ends.
func (p *Provider) keepGuarded(ctx context.Context) error {
	var unguarded <-chan struct{}
	if !p.opts.Attached {
		guard, err := p.guardPool()
		if err != nil {
			return fmt.Errorf("its guard cannot be started: %w", err)
		}
		defer guard.kill()
		unguarded = guard.done
	}
	p.pool.off.Store(nil)
	tick := time.NewTicker(poolTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-unguarded:
			return errors.New("its guard ended")
		case <-tick.C:
		case <-p.pool.idle:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(poolPause):
		}
		for p.keepOne(ctx) {
		}
	}
}

// keepOne prewarms one sandbox or ends surplus ones, and reports whether there
// may be more to do.
func (p *Provider) keepOne(ctx context.Context) bool {
	if p.pool.lowMemory() {
		p.Drain()
		return false
	}
	p.pool.making.Lock()
	defer p.pool.making.Unlock()
	s, ref, from, surplus := p.pool.next(time.Now(), p.opts.Pool)
	for _, m := range surplus {
		m.undo()
	}
	if ref == "" || ctx.Err() != nil {
		return false
	}
	defer from.Close()
	m, err := p.prepareOne(ctx, s, ref, from)
	if err != nil {
		p.pool.forget(s)
		return true
	}
	m.from = nil
	if !p.pool.put(s, "", m) {
		m.undo()
		return false
	}
	return true
}

// next returns the shape to prewarm next, with an empty ref if there is none,
// and the sandboxes to end. At most most sandboxes may be ready.
func (l *pool) next(now time.Time, most int) (what shape, ref string, from *snapshot.Saved, surplus []*maker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy > 0 || l.closed {
		return what, "", nil, nil
	}
	ready := 0
	var best *warmSet
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
		if o := [3]int{-len(sh.ready), lack, int(s.stage)}; lack > 0 && (best == nil || slices.Compare(o[:], order[:]) > 0) {
			what, best, order = s, sh, o
		}
	}
	if best == nil {
		return what, "", nil, surplus
	}
	if ready >= most {
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
func (l *pool) lesser(than *warmSet) (least *warmSet) {
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
func (sh *warmSet) last() time.Time {
	if len(sh.asked) == 0 {
		return time.Time{}
	}
	return sh.asked[len(sh.asked)-1]
}

// drop removes n sandboxes, if n is positive.
func (sh *warmSet) drop(n int) (dropped []*maker) {
	n = max(n, 0)
	dropped, sh.ready = sh.ready[:n], sh.ready[n:]
	return dropped
}

// want returns how many sandboxes of a shape should be ready: as many as were
// requested in a burst, and one for a while after that.
func (sh *warmSet) want(now time.Time) (n int) {
	if sh.from.Removed() {
		sh.asked = nil
	}
	for len(sh.asked) > 0 && now.Sub(sh.asked[0]) > poolMemory {
		sh.asked = sh.asked[1:]
	}
	for _, at := range sh.asked {
		if now.Sub(at) < poolBurst {
			n++
		}
	}
	if sh.from != nil && len(sh.asked) < 2 {
		return 0 // most snapshots are restored only once
	}
	return max(n, min(1, len(sh.asked)))
}

// forget drops a shape that cannot be created.
func (l *pool) forget(s shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sh := l.shapes[s]; sh != nil {
		sh.asked = nil
	}
}

// lowMemory reports whether the machine has too little memory left for a pool.
func lowMemory() bool {
	figures := memoryFigures()
	return figures["MemAvailable"]*100 < figures["MemTotal"]*poolUnused
}

// memoryFigures returns the machine's memory in KiB, by name. See
// proc_meminfo(5).
func memoryFigures() map[string]int64 {
	figures := map[string]int64{}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return figures
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		figures[name], _ = strconv.ParseInt(kb, 10, 64)
	}
	return figures
}
