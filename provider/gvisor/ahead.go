package gvisor

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/image"
)

// aheadTime is how long a kernel that was started for a fork waits to be used.
const aheadTime = 10 * time.Second

// aheads are kernels that are started while a sandbox is written down of which
// copies are to be made at once, so that neither waits for the other. They are
// found by the directory of the snapshot.
type aheads struct {
	mu     sync.Mutex
	dirs   map[string]*ahead
	closed bool
	work   sync.WaitGroup
}

// ahead are those for one snapshot. They are ended if nobody takes them in time.
type ahead struct {
	shape   shape
	kernels chan *maker // closed when no more will come
	end     func()
}

// startAhead begins to start kernels for so many copies of the sandbox, but for
// those that the pool has. Half of the processors are left to the sandbox
// itself, which stands still meanwhile. It returns what ends them.
func (in *Instance) startAhead(dir string, copies int) (end func()) {
	p := in.p
	s := shape{digest: in.rec.Spec.Digest, resources: withDefaults(in.rec.Spec.Resources), guest: in.rec.Guest}
	n := min(copies-p.pool.count(s), max(1, runtime.GOMAXPROCS(0)/2))
	if n <= 0 || p.pool.scarce() {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(p.pool.ctx, aheadTime)
	a := &ahead{shape: s, kernels: make(chan *maker, n), end: cancel}
	if !p.aheads.add(dir, a) {
		return cancel
	}
	var starting sync.WaitGroup
	for range n {
		starting.Go(func() {
			if m, err := in.prepareCopy(ctx, s); err == nil {
				a.kernels <- m
			}
		})
	}
	go func() {
		defer p.aheads.work.Done()
		starting.Wait()
		close(a.kernels)
		<-ctx.Done()
		p.aheads.forget(dir, a)
		for m := range a.kernels {
			m.undo()
		}
	}()
	return cancel
}

// prepareCopy starts a kernel for a copy, if one without mounts of its own can
// have the memory of the sandbox.
func (in *Instance) prepareCopy(ctx context.Context, s shape) (*maker, error) {
	img, err := in.p.opts.Images.Get(ctx, in.rec.Spec.Image, image.GetOptions{})
	if err != nil {
		return nil, err
	}
	m := in.p.earlyMaker(s, in.rec.Spec.Image, img)
	m.like = in
	if err = m.prepare(); err == nil && (img.Digest != s.digest || !slices.Equal(m.rec.Mounts, in.rec.Mounts)) {
		err = errors.New("a copy would be another sandbox")
	}
	if err == nil {
		err = m.launch(ctx)
	}
	if err != nil {
		m.undo()
		return nil, err
	}
	return m, nil
}

// add makes what is started for a snapshot known, unless the provider is closed.
func (l *aheads) add(dir string, a *ahead) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.dirs == nil {
		l.dirs = map[string]*ahead{}
	}
	l.dirs[filepath.Clean(dir)] = a
	l.work.Add(1)
	return true
}

func (l *aheads) forget(dir string, a *ahead) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if dir = filepath.Clean(dir); l.dirs[dir] == a {
		delete(l.dirs, dir)
	}
}

// close waits until all are ended, which the end of the pool's context brings
// about. No more are started.
func (l *aheads) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.work.Wait()
}

// take returns a kernel that was started for a copy of the snapshot, or nil. It
// waits for one that is being started: another would be ready later.
func (l *aheads) take(ctx context.Context, dir string, shapes []shape) *maker {
	l.mu.Lock()
	a := l.dirs[filepath.Clean(dir)]
	l.mu.Unlock()
	if a == nil || !slices.Contains(shapes, a.shape) {
		return nil
	}
	for {
		select {
		case m, more := <-a.kernels:
			if !more {
				a.end()
				return nil
			}
			if m.alive() {
				return m
			}
			m.undo()
		case <-ctx.Done():
			return nil
		}
	}
}
