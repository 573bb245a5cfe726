package wire

import (
	"io"
	"os"
	"sync"
	"time"
)

// inLane is the receiving end of one byte stream of an operation: a ring buffer
// that grows up to the window. One goroutine fills it and one empties it.
type inLane struct {
	op     *Op
	lane   byte
	window int

	mu       sync.Mutex
	ready    sync.Cond
	buf      []byte
	start, n int
	consumed int   // bytes read and not yet granted again
	err      error // what the reader gets after the buffered bytes
	deadline deadline
}

const minRing = 4 << 10

// fill reads size bytes of the lane from r. The sender must not exceed the
// window that it was granted.
func (l *inLane) fill(r io.Reader, size int) error {
	if size == 0 {
		return nil
	}
	l.mu.Lock()
	if l.n+l.consumed+size > l.window {
		l.mu.Unlock()
		return violation("lane overrun")
	}
	if l.err != nil {
		l.mu.Unlock()
		return discard(r, size)
	}
	l.grow(l.n + size)
	at := (l.start + l.n) % len(l.buf)
	first := min(size, len(l.buf)-at)
	a, b := l.buf[at:at+first], l.buf[:size-first]
	l.mu.Unlock()

	// The reader only takes bytes that are counted in n, so the free part of the
	// ring belongs to this goroutine.
	if _, err := io.ReadFull(r, a); err != nil {
		return err
	}
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	l.mu.Lock()
	if l.buf != nil { // nil: the lane was dropped meanwhile
		l.n += size
	}
	l.mu.Unlock()
	l.ready.Signal()
	return nil
}

// grow makes room for need bytes in total.
func (l *inLane) grow(need int) {
	if l.n == 0 {
		l.start = 0
	}
	if need <= len(l.buf) {
		return
	}
	size := max(len(l.buf), minRing)
	for size < need {
		size *= 2
	}
	buf := make([]byte, size)
	k := copy(buf, l.buf[l.start:min(l.start+l.n, len(l.buf))])
	copy(buf[k:], l.buf[:l.n-k])
	l.buf, l.start = buf, 0
}

// finish ends the lane: err, usually io.EOF, follows the buffered bytes.
func (l *inLane) finish(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.ready.Broadcast()
}

// drop ends the lane and discards its content.
func (l *inLane) drop(err error) {
	l.mu.Lock()
	l.err = err
	l.buf, l.start, l.n = nil, 0, 0
	l.mu.Unlock()
	l.ready.Broadcast()
}

// peek waits for bytes and returns the next contiguous ones, which stay valid
// until take.
func (l *inLane) peek() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.n == 0 && l.err == nil && !l.deadline.passed {
		l.ready.Wait()
	}
	switch {
	case l.deadline.passed:
		return nil, os.ErrDeadlineExceeded
	case l.n == 0:
		return nil, l.err
	}
	return l.buf[l.start:min(l.start+l.n, len(l.buf))], nil
}

// take removes k bytes and grants them to the sender again, in large steps to
// keep the cost of credit low.
func (l *inLane) take(k int) {
	l.mu.Lock()
	if l.n == 0 {
		l.mu.Unlock() // dropped meanwhile
		return
	}
	l.start = (l.start + k) % len(l.buf)
	l.n -= k
	l.consumed += k
	grant := 0
	if l.consumed >= l.window/2 && l.err == nil {
		grant, l.consumed = l.consumed, 0
	}
	l.mu.Unlock()
	if grant > 0 {
		l.op.conn.grant(l.op.id, l.lane, grant)
	}
}

// Read implements io.Reader.
func (l *inLane) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b, err := l.peek()
	if err != nil {
		return 0, err
	}
	n := copy(p, b)
	l.take(n)
	return n, nil
}

// WriteTo implements io.WriterTo, so that io.Copy needs no buffer of its own.
func (l *inLane) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		b, err := l.peek()
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		n, err := w.Write(b[:min(len(b), l.window/4)]) // small enough that the sender can continue
		total += int64(n)
		l.take(n)
		if err != nil {
			return total, err
		}
	}
}

// outLane is the sending end and its credit from the receiver.
type outLane struct {
	window int

	mu     sync.Mutex
	ready  sync.Cond
	credit int
	err    error

	deadline deadline
}

// acquire waits for at least least bytes of credit and takes at most want.
func (l *outLane) acquire(least, want int) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.credit < least && l.err == nil && !l.deadline.passed {
		l.ready.Wait()
	}
	switch {
	case l.err != nil:
		return 0, l.err
	case l.deadline.passed:
		return 0, os.ErrDeadlineExceeded
	}
	n := min(want, l.credit)
	l.credit -= n
	return n, nil
}

func (l *outLane) add(n uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int64(l.credit)+int64(n) > int64(l.window) {
		return violation("more credit than the window")
	}
	l.credit += int(n)
	l.ready.Broadcast()
	return nil
}

func (l *outLane) finish(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.ready.Broadcast()
}

// deadline unblocks the waiting readers or writers of a lane, as with a
// net.Conn. The lane's mutex guards it.
type deadline struct {
	passed bool
	timer  *time.Timer
	turn   int // counts calls of set, so that a late timer has no effect
}

// set replaces the deadline; the zero time means none. ready is the condition
// that users of the lane wait on; its mutex is the lane's.
func (d *deadline) set(at time.Time, ready *sync.Cond) {
	ready.L.Lock()
	defer ready.L.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.turn++
	turn, left := d.turn, time.Until(at)
	d.passed = !at.IsZero() && left <= 0
	if !at.IsZero() && left > 0 {
		d.timer = time.AfterFunc(left, func() {
			ready.L.Lock()
			defer ready.L.Unlock()
			if d.turn == turn {
				d.passed = true
				ready.Broadcast()
			}
		})
	}
	ready.Broadcast()
}
