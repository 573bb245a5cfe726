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
)

// How the pool follows what is asked for. A shape that was asked for twice
// lately will be again; one that nobody wants any more is let go.
const (
	poolMemory = 5 * time.Minute        // how long a request is remembered
	poolBurst  = time.Minute            // requests within which may come again together
	poolPause  = 100 * time.Millisecond // of quiet, before something is made ahead
	poolTick   = 5 * time.Second        // how often the machine's memory is looked at
	poolUnused = 10                     // percent of that which the pool leaves free
)

// pooled begins to follow what is asked for, if there is to be a pool.
func (p *Provider) pooled() bool {
	if p.opts.Pool <= 0 {
		return false
	}
	p.pool.once.Do(func() { p.pool.work.Go(func() { p.keepPool(p.pool.ctx) }) })
	return true
}

// ask remembers that somebody wants one of a shape.
func (l *pool) ask(s shape, ref string, from *saved) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	sh := l.warm(s, ref)
	sh.asked = append(sh.asked, time.Now())
	if s.from != "" && sh.from == nil {
		sh.from = from.share()
	}
}

// begin tells that a sandbox is being made for somebody, until the returned
// function is called: nothing is made ahead meanwhile, which would slow it down.
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

// keepPool makes sandboxes ahead until ctx ends.
func (p *Provider) keepPool(ctx context.Context) {
	for {
		err := p.keepGuarded(ctx)
		if ctx.Err() != nil {
			return
		}
		// They could outlive us, so there are none without a guard.
		p.Drain()
		p.pool.off.Store(&err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(poolTick):
		}
	}
}

// keepGuarded makes sandboxes ahead until ctx or the pool's guard ends.
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

// keepOne makes one sandbox ahead, or ends those that there are too many of,
// and reports whether there may be more to do.
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
	defer from.close()
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

// next returns what to make next, of which ref is empty if there is nothing,
// and what to end. At most so many are to be ready at once.
func (l *pool) next(now time.Time, most int) (what shape, ref string, from *saved, surplus []*maker) {
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
			sh.from.close()
			delete(l.shapes, s)
			continue
		}
		if sh.kept {
			surplus = append(surplus, sh.drop(len(sh.ready)-want)...)
		}
		ready += len(sh.ready)
		lack := want - len(sh.ready)
		// Of those that lack something: what there is least of, what lacks
		// most, what spares most.
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
	return what, best.image, best.from.share(), surplus
}

// lesser returns a set that has to give one up for another one: there are two
// more of it, or there is none of the other, which was asked for later.
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

// last is when one was asked for last.
func (sh *warmSet) last() time.Time {
	if len(sh.asked) == 0 {
		return time.Time{}
	}
	return sh.asked[len(sh.asked)-1]
}

// drop takes n sandboxes away, if n is positive.
func (sh *warmSet) drop(n int) (dropped []*maker) {
	n = max(n, 0)
	dropped, sh.ready = sh.ready[:n], sh.ready[n:]
	return dropped
}

// want is how many of a shape should be ready: as many as were asked for within
// a moment, and one for a while after that.
func (sh *warmSet) want(now time.Time) (n int) {
	if sh.from.removed() {
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
		return 0 // most snapshots are restored once
	}
	return max(n, min(1, len(sh.asked)))
}

// forget drops a shape that cannot be made.
func (l *pool) forget(s shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sh := l.shapes[s]; sh != nil {
		sh.asked = nil
	}
}

// lowMemory reports whether the machine has so little memory left that the pool
// should not hold any.
func lowMemory() bool {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return false
	}
	defer f.Close()
	figures := map[string]int64{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		figures[name], _ = strconv.ParseInt(kb, 10, 64)
	}
	return figures["MemAvailable"]*100 < figures["MemTotal"]*poolUnused
}
