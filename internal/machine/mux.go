package machine

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

// Mux has the streams of one side. Both sides of the transport, a daemon and a
// machine, have one. It is safe for concurrent use.
type Mux struct {
	cfg  MuxConfig
	stop chan struct{}
	work sync.WaitGroup

	mu      sync.Mutex
	streams map[string]*Stream
	past    map[string]time.Time // ids of streams that ended
	taken   int                  // streams of the other side
	closed  bool
}

// MuxConfig configures a Mux.
type MuxConfig struct {
	// Send sends a message. It must not keep data, and may lose it.
	Send func(subject string, data []byte) error
	// Payload returns the largest message in bytes that the transport takes.
	Payload func() int64
	// Accept takes a new stream of the other side. It must not block. Nil: streams
	// of the other side are refused.
	Accept func(*Stream)
	// Max is how many streams of the other side there may be; more are refused with
	// CodeDraining.
	Max int
}

// NewMux returns a Mux. The caller closes it.
func NewMux(cfg MuxConfig) *Mux {
	m := &Mux{cfg: cfg, stop: make(chan struct{}), streams: map[string]*Stream{}, past: map[string]time.Time{}}
	m.work.Go(m.watch)
	return m
}

func (m *Mux) send(subject string, data []byte) error { return m.cfg.Send(subject, data) }

func (m *Mux) chunk() int { return min(maxChunk, int(m.cfg.Payload())-overhead) }

// Limits on what the other side makes this one remember.
const (
	maxPast = 1 << 16 // streams that ended
	maxID   = 64      // bytes
)

// every is how often the streams are looked at.
const every = 250 * time.Millisecond

func (m *Mux) watch() {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-m.stop:
			return
		case now := <-tick.C:
			for _, s := range m.all() {
				s.tick(now)
			}
			m.forget(now)
		}
	}
}

func (m *Mux) all() []*Stream {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*Stream, 0, len(m.streams))
	for _, s := range m.streams {
		all = append(all, s)
	}
	return all
}

// forget forgets the ids of streams that ended so long ago that no message about
// them can be on its way.
func (m *Mux) forget(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, at := range m.past {
		if now.Sub(at) > 2*hold {
			delete(m.past, id)
		}
	}
}

func (m *Mux) remove(s *Stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.streams[s.id] == s {
		delete(m.streams, s.id)
		if s.taken {
			m.taken--
		}
		m.past[s.id] = time.Now()
	}
}

// Open opens a stream to the other side, which gets the frames at subject plus
// the stream's id. It waits for the answer.
func (m *Mux) Open(ctx context.Context, subject string) (*Stream, error) {
	id := rand.Text()
	s := newStream(m, id, subject+id)
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, &Error{CodeStream, "the connection to the machines is closed"}
	}
	m.streams[id] = s
	m.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cond.Broadcast()
	})()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(frame{kind: kindOpen})
	for !s.accepted && s.err == nil && ctx.Err() == nil {
		s.cond.Wait()
	}
	if s.accepted {
		return s, nil
	}
	err := s.err
	if err == nil {
		err = ctx.Err()
		s.send(frame{kind: kindReset})
		s.fail(&Error{Code: CodeOver})
	}
	return nil, err
}

// Receive handles a message about the stream id. reply is the subject for
// answers. It must not be called concurrently for the same stream.
func (m *Mux) Receive(id, reply string, data []byte) {
	f, err := decode(data)
	refuse := func(code Code, text string) {
		if f.kind != kindReset {
			r := frame{kind: kindReset, generation: f.generation, code: code, text: text}
			_ = m.send(reply, r.encode())
		}
	}
	m.mu.Lock()
	s, past := m.streams[id], m.past[id]
	fresh := s == nil && err == nil && f.kind == kindOpen && past.IsZero() && !m.closed && m.cfg.Accept != nil
	full := fresh && (m.taken >= m.cfg.Max || len(m.past) >= maxPast || len(id) > maxID)
	if fresh && !full {
		s = newStream(m, id, reply)
		s.accepted, s.taken = true, true
		m.streams[id] = s
		m.taken++
	}
	m.mu.Unlock()
	switch {
	case err != nil:
		refuse(CodeProtocol, "the message is not a frame")
		return
	case full:
		refuse(CodeDraining, "the machine serves as many connections as it may")
		return
	case s == nil && !past.IsZero():
		refuse(CodeOver, "the connection has ended")
		return
	case s == nil:
		refuse(CodeStream, "there is no such connection")
		return
	}
	s.receive(&f)
	if fresh {
		m.cfg.Accept(s)
	}
}

// Reconnected continues all streams over a new connection of the transport.
func (m *Mux) Reconnected() {
	for _, s := range m.all() {
		s.attach()
	}
}

// Fail ends the streams whose subject matches. The other side is told if tell is
// set.
func (m *Mux) Fail(match func(subject string) bool, tell bool, err *Error) {
	for _, s := range m.all() {
		if !match(s.subject) {
			continue
		}
		s.mu.Lock()
		if tell && s.err == nil {
			s.send(frame{kind: kindReset, code: err.Code, text: err.Text})
		}
		s.fail(err)
		s.mu.Unlock()
	}
}

// Len returns the number of streams.
func (m *Mux) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.streams)
}

// Close ends all streams, and tells the other side.
func (m *Mux) Close() {
	m.mu.Lock()
	was := m.closed
	m.closed = true
	m.mu.Unlock()
	if was {
		return
	}
	close(m.stop)
	m.work.Wait()
	m.Fail(func(string) bool { return true }, true, &Error{CodeStream, "the other side ended"})
}
