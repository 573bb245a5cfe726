// Package pool keeps sandboxes ready that nobody uses yet, and decides which.
//
// A sandbox of the pool has a shape: what must be equal for it to serve a
// request. The pool makes sandboxes of the shapes that were requested lately
// while no sandbox is made for a caller, and ends them when memory is low.
package pool

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
	"github.com/atoll-run/atoll/sandbox"
)

// Stage is the stage up to which a sandbox is made in advance.
type Stage int

const (
	// AtKernel: its kernel waits for a call that says what to start or to restore.
	// It can restore any snapshot, with or without a network.
	AtKernel Stage = iota
	// AtGuest: its guest waits to be configured.
	AtGuest
)

// Shape lists the properties that must be equal for a sandbox of the pool to
// serve a request. Name, environment and user are assigned later.
type Shape struct {
	Digest    string // of the image
	Resources sandbox.Resources
	Guest     string // digest of the guest's program
	From      string // the snapshot whose memory was restored; empty: none
	Stage     Stage
}

// Sandbox is a sandbox without a user.
type Sandbox interface {
	// Alive reports whether the sandbox runs.
	Alive() bool
	// Undo ends the sandbox and removes its files.
	Undo()
}

// Maker makes the sandboxes of a pool. Its methods are called by one goroutine.
type Maker[S Sandbox] interface {
	// Make makes a sandbox of a shape from an image and, if the shape has the memory
	// of one, from a snapshot, which the pool closes. On an error nothing remains.
	Make(ctx context.Context, s Shape, image string, from *snapshot.Saved) (S, error)
	// Guard makes sure that the sandboxes end if this process is killed, until stop
	// is called. When ended is closed, that is no longer so. Nil: it always is.
	Guard() (ended <-chan struct{}, stop func(), err error)
	// LowMemory reports whether the machine has too little memory for a pool.
	LowMemory() bool
}

// Pool holds unused sandboxes. Each is used once: a sandbox is never handed to a
// second user. A Pool may be used concurrently.
type Pool[S Sandbox] struct {
	maker Maker[S]
	most  int // sandboxes that are kept ready

	mu     sync.Mutex
	shapes map[Shape]*set[S]
	busy   int           // sandboxes being made for callers
	idle   chan struct{} // signals the pool's goroutine that busy is 0
	closed bool
	making sync.Mutex // held while the pool makes one

	off atomic.Pointer[error] // why the pool is disabled at the moment

	once sync.Once // starts the pool's goroutine, which ends with ctx
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup
}

// set holds the ready sandboxes of one shape and the data to make more.
type set[S Sandbox] struct {
	image string
	from  *snapshot.Saved // nil without a snapshot
	ready []S
	asked []time.Time // times of recent requests, oldest first
	kept  bool        // its size follows asked, and is not that of Put
}

// New returns a pool that keeps at most a number of sandboxes ready; with zero,
// it has only those of Put. The caller closes it.
func New[S Sandbox](maker Maker[S], most int) *Pool[S] {
	l := &Pool[S]{maker: maker, most: most, idle: make(chan struct{}, 1)}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// Close ends the sandboxes of the pool permanently. Put fails from then on.
func (l *Pool[S]) Close() {
	l.once.Do(func() {}) // prevents starting the goroutine
	l.stop()
	l.work.Wait()
	for _, sb := range l.empty(true) {
		sb.Undo()
	}
}

// Drain ends the sandboxes of the pool, including one that is being made, and
// waits for that.
func (l *Pool[S]) Drain() {
	ready := l.empty(false)
	l.making.Lock()
	defer l.making.Unlock()
	for _, sb := range ready {
		sb.Undo()
	}
}

// empty removes all sandboxes from the pool. With closing the pool stays empty.
func (l *Pool[S]) empty(closing bool) (ready []S) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.shapes {
		ready = append(ready, s.ready...)
		s.from.Close()
	}
	l.shapes, l.closed = nil, l.closed || closing
	return ready
}

// of returns the set of a shape and creates it if it is missing. l.mu is held.
func (l *Pool[S]) of(s Shape, image string) *set[S] {
	if l.shapes == nil {
		l.shapes = map[Shape]*set[S]{}
	}
	if l.shapes[s] == nil {
		l.shapes[s] = &set[S]{image: image}
	}
	return l.shapes[s]
}

// Put adds a sandbox to the pool. It fails if the pool was closed meanwhile, or,
// without an image, if there are no longer requests for the shape.
func (l *Pool[S]) Put(s Shape, image string, sb S) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || image == "" && l.shapes[s] == nil {
		return false
	}
	sh := l.of(s, image)
	sh.ready = append(sh.ready, sb)
	return true
}

// Take hands out a running sandbox of a shape, if there is one. It ends those
// that no longer run.
func (l *Pool[S]) Take(s Shape) (sb S, ok bool) {
	sb, ok, dead := l.take(s)
	for _, d := range dead {
		d.Undo()
	}
	return sb, ok
}

func (l *Pool[S]) take(s Shape) (sb S, ok bool, dead []S) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sh := l.shapes[s]
	for sh != nil && len(sh.ready) > 0 {
		sb, sh.ready = sh.ready[0], sh.ready[1:]
		if sb.Alive() {
			return sb, true, dead
		}
		dead = append(dead, sb)
	}
	return sb, false, dead
}

// Want records a request for a shape of an image, with the memory of a snapshot
// if the shape has one. The pool takes its own reference of that. Without
// sandboxes to keep ready, Want does nothing.
func (l *Pool[S]) Want(s Shape, image string, from *snapshot.Saved) {
	if l.most <= 0 {
		return
	}
	l.once.Do(func() { l.work.Go(func() { l.keep(l.ctx) }) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	sh := l.of(s, image)
	sh.asked = append(sh.asked, time.Now())
	if s.From != "" && sh.from == nil {
		sh.from = from.Share()
	}
}

// Begin records that a sandbox is being made for a caller, until end is called. The pool makes nothing meanwhile, because that would slow it down.
func (l *Pool[S]) Begin() (end func()) {
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

// Ready returns the number of sandboxes in the pool, and how many of them have
// the memory of a snapshot.
func (l *Pool[S]) Ready() (all, restored int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s, sh := range l.shapes {
		all += len(sh.ready)
		if s.From != "" {
			restored += len(sh.ready)
		}
	}
	return all, restored
}

// Disabled returns why the pool keeps nothing at the moment, or nil. It is tried
// again every few seconds.
func (l *Pool[S]) Disabled() error {
	if why := l.off.Load(); why != nil {
		return *why
	}
	return nil
}
