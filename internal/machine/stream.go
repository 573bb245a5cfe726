package machine

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Limits of a connection.
const (
	// window is how many bytes may be sent before the other side's user has read
	// them. The sender keeps them until then, so that it can send them again, and
	// nothing is ever left out.
	window = 4 << 20
	// maxChunk is the largest data of one frame.
	maxChunk = 128 << 10
	// hold is how long a connection outlives the silence of its other side.
	hold = 120 * time.Second

	askSoon  = time.Second      // after data that was not acknowledged as received
	askMax   = 8 * time.Second  // the longest delay between questions about it
	askStill = 5 * time.Second  // while data waits to be consumed
	askIdle  = 15 * time.Second // otherwise
)

// Error is why a connection failed.
type Error struct {
	Code Code
	Text string
}

// Error returns the reason.
func (e *Error) Error() string { return e.Text }

// Stream is a connection that outlives the loss of messages and of the
// transport. What one side writes, the other reads exactly once and in order, or
// the stream fails. It is safe for concurrent use.
type Stream struct {
	mux     *Mux
	id      string
	subject string // of the frames to the other side
	taken   bool   // the other side has opened it

	mu   sync.Mutex
	cond *sync.Cond

	// The numbers count bytes from the begin of the connection. The end of a
	// direction takes one number more.
	generation, theirs uint64
	out                []byte // what the other side's user has not read
	acked              uint64 // the number of out[0]
	sent               uint64 // sent at least once
	got                uint64 // received by the other side
	fin                bool   // nothing is written any more
	finRead            bool   // the other side's user knows
	in                 []byte // received and not read
	received, consumed uint64
	told               uint64 // the consumed that was sent last
	end                bool   // the other side writes nothing more
	accepted           bool   // the other side answered
	closed             bool   // this side reads nothing any more
	err                error
	over               chan struct{} // closed with err, or when the other side reads nothing any more
	isOver             bool

	heard, asked, nacked time.Time
	wait                 time.Duration // before the next question
	read, write          deadline
}

// deadline is a time at which waiting ends.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func newStream(m *Mux, id, subject string) *Stream {
	now := time.Now()
	s := &Stream{mux: m, id: id, subject: subject, generation: 1, heard: now, asked: now, wait: askSoon, over: make(chan struct{})}
	s.cond = sync.NewCond(&s.mu)
	return s
}

// Over is closed when the stream failed, or the other side reads nothing any
// more.
func (s *Stream) Over() <-chan struct{} { return s.over }

// last returns the number after everything written until now.
func (s *Stream) last() uint64 {
	n := s.acked + uint64(len(s.out))
	if s.fin {
		n++
	}
	return n
}

// send sends a frame. A frame that cannot be sent is lost, as any other message
// may be; a question finds that out.
func (s *Stream) send(f frame) {
	f.generation, f.consumed, f.closed = s.generation, s.consumed, s.closed
	s.told = s.consumed
	_ = s.mux.send(s.subject, f.encode())
}

func (s *Stream) state(upto uint64) { s.send(frame{kind: kindState, offset: s.received, upto: upto}) }

func (s *Stream) query() {
	s.asked = time.Now()
	s.send(frame{kind: kindQuery, offset: s.sent})
}

// flush sends what was not sent yet.
func (s *Stream) flush() {
	if !s.accepted {
		return
	}
	chunk := s.mux.chunk()
	for s.sent < s.last() {
		from := min(s.sent-s.acked, uint64(len(s.out)))
		n := min(uint64(len(s.out))-from, uint64(chunk))
		f := frame{kind: kindData, offset: s.sent, data: s.out[from : from+n]}
		f.fin = s.fin && from+n == uint64(len(s.out))
		s.send(f)
		if s.sent += n; f.fin {
			s.sent++
		}
		s.asked = time.Now()
	}
}

// receive handles a frame of the other side.
func (s *Stream) receive(f *frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if f.kind == kindReset {
		s.fail(&Error{f.code, f.text})
		return
	}
	if f.generation < s.theirs {
		return
	}
	s.theirs, s.heard = f.generation, time.Now()
	if !s.accepted {
		s.accepted = true
		s.flush()
	}
	s.acknowledge(f)
	switch f.kind {
	case kindOpen:
		s.state(0)
	case kindQuery:
		s.state(f.offset)
	case kindData:
		s.take(f)
	case kindState:
		if f.offset > s.got {
			s.got, s.wait = f.offset, askSoon
		}
		if f.upto > f.offset && f.offset >= s.acked && f.offset < s.sent { // some was lost
			s.sent = f.offset
			s.flush()
		}
	}
	s.cond.Broadcast()
	s.finish()
}

// acknowledge forgets what the other side's user has read.
func (s *Stream) acknowledge(f *frame) {
	if f.consumed > s.sent {
		s.fail(&Error{CodeProtocol, "more was acknowledged than was sent"})
		return
	}
	if f.consumed > s.acked {
		n := min(f.consumed-s.acked, uint64(len(s.out)))
		s.out, s.acked = s.out[n:], s.acked+n
		s.finRead = s.finRead || f.consumed > s.acked
		s.got, s.wait = max(s.got, f.consumed), askSoon
		if len(s.out) == 0 {
			s.out = nil
		}
	}
	if f.closed && !s.isOver {
		s.isOver = true
		close(s.over)
	}
}

// take takes data. What was received before is not taken again.
func (s *Stream) take(f *frame) {
	length := uint64(len(f.data))
	switch {
	case f.offset > s.received: // something before it was lost
		if time.Since(s.nacked) > askSoon/4 {
			s.nacked = time.Now()
			s.state(f.offset)
		}
		return
	case f.offset+length < s.received || s.end:
		s.state(0)
		return
	case uint64(len(s.in))+length > window+maxChunk:
		s.fail(&Error{CodeProtocol, "more was sent than the window allows"})
		return
	}
	fresh := f.data[s.received-f.offset:]
	s.received += uint64(len(fresh))
	if s.closed {
		s.consumed = s.received
	} else {
		s.in = append(s.in, fresh...)
	}
	if f.fin {
		s.end = true
		s.received++
	}
	if s.end && len(s.in) == 0 {
		s.consumed = s.received
	}
	if s.consumed > s.told {
		s.state(0)
	}
}

// fail ends the stream.
func (s *Stream) fail(err *Error) {
	if s.err != nil {
		return
	}
	if s.err = error(err); err.Code == CodeOver {
		s.err = io.ErrClosedPipe
	}
	if !s.isOver {
		s.isOver = true
		close(s.over)
	}
	s.cond.Broadcast()
	go s.mux.remove(s)
}

// finish removes a stream that both sides have finished with.
func (s *Stream) finish() {
	if s.err == nil && s.finRead && s.end && s.consumed == s.received {
		s.fail(&Error{Code: CodeOver})
	}
}

// tick asks the other side for its state from time to time, and ends the stream
// when it has been silent for too long.
func (s *Stream) tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if now.Sub(s.heard) > hold {
		s.fail(&Error{CodeOffline, fmt.Sprintf("nothing was heard for %v", hold)})
		return
	}
	wait := askIdle
	switch {
	case s.sent > s.got:
		wait = s.wait
	case len(s.out) > 0:
		wait = askStill
	}
	if now.Sub(s.asked) < wait {
		return
	}
	if !s.accepted {
		s.asked = now
		s.send(frame{kind: kindOpen})
		return
	}
	s.wait = min(2*s.wait, askMax)
	s.query()
}

// attach continues the stream over a new connection of the transport.
func (s *Stream) attach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.generation++
	s.wait = askSoon
	if !s.accepted {
		s.send(frame{kind: kindOpen})
		return
	}
	s.query()
}

// Read implements net.Conn.
func (s *Stream) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, net.ErrClosed
		case len(s.in) > 0:
			n := copy(b, s.in)
			if s.in = s.in[n:]; len(s.in) == 0 {
				s.in = nil
			}
			s.consumed += uint64(n)
			if s.end && len(s.in) == 0 {
				s.consumed = s.received
			}
			if s.err == nil && (len(s.in) == 0 || s.consumed-s.told > window/8) {
				s.state(0)
				s.finish()
			}
			return n, nil
		case s.end:
			return 0, io.EOF
		case s.err != nil:
			return 0, s.err
		case s.read.passed():
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		}
		s.cond.Wait()
	}
}

// Write implements net.Conn. It returns when the data can be sent, not when it
// was received.
func (s *Stream) Write(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 {
		switch {
		case s.closed || s.fin:
			return n, net.ErrClosed
		case s.err != nil:
			return n, s.err
		case s.isOver:
			return n, io.ErrClosedPipe
		case s.write.passed():
			return n, os.ErrDeadlineExceeded
		case len(s.out) >= window:
			s.cond.Wait()
			continue
		}
		k := min(len(b), window-len(s.out))
		s.out = append(s.out, b[:k]...)
		s.flush()
		b, n = b[k:], n+k
	}
	return n, nil
}

// CloseWrite ends the direction to the other side.
func (s *Stream) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fin && s.err == nil {
		s.fin = true
		s.flush()
	}
	return nil
}

// Close implements net.Conn. What was written still reaches the other side.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed, s.in, s.consumed = true, nil, s.received
	s.cond.Broadcast()
	if s.err == nil {
		s.fin = true
		s.flush()
		s.state(0)
		s.finish()
	}
	return nil
}

func (s *Stream) setDeadline(t time.Time, all ...*deadline) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range all {
		if d.at = t; d.timer != nil {
			d.timer.Stop()
		}
		if !t.IsZero() {
			d.timer = time.AfterFunc(time.Until(t), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.cond.Broadcast()
			})
		}
	}
	s.cond.Broadcast()
	return nil
}

// SetDeadline implements net.Conn.
func (s *Stream) SetDeadline(t time.Time) error { return s.setDeadline(t, &s.read, &s.write) }

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.setDeadline(t, &s.read) }

// SetWriteDeadline implements net.Conn.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.setDeadline(t, &s.write) }

// addr is the address of a side of a stream.
type addr string

func (addr) Network() string  { return "machine" }
func (a addr) String() string { return string(a) }

// LocalAddr implements net.Conn.
func (s *Stream) LocalAddr() net.Addr { return addr(s.id) }

// RemoteAddr implements net.Conn.
func (s *Stream) RemoteAddr() net.Addr { return addr(s.subject) }
