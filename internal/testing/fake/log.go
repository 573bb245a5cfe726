package fake

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// The end of a background command's output that is kept: at most so many bytes,
// in at most so many pieces.
const (
	logSize   = 1 << 20
	logPieces = 1 << 15
)

// outputLog keeps the end of a background command's output. Writing to it
// blocks only while it is held: nothing is dropped then that who started the
// command has not read.
type outputLog struct {
	mu     sync.Mutex
	pieces []piece // in order, without gaps
	end    int64   // bytes ever written
	closed bool    // no more output will be written
	ended  bool    // the command has
	wake   chan struct{}
	held   bool
	got    [3]int64 // by stream, how far who started the command has read
}

// piece is output of one stream; off counts the bytes of both.
type piece struct {
	stream int
	off    int64
	data   []byte
}

func newOutputLog() *outputLog { return &outputLog{wake: make(chan struct{})} }

func (l *outputLog) changed() {
	close(l.wake)
	l.wake = make(chan struct{})
}

// fits reports whether data can be added without dropping unread output. The
// caller holds mu.
func (l *outputLog) fits(data []byte) bool {
	return !l.held || len(l.pieces) == 0 || l.end+int64(len(data))-l.start() <= logSize && len(l.pieces) < logPieces ||
		l.got[l.pieces[0].stream] >= l.pieces[0].off+int64(len(l.pieces[0].data))
}

// await waits until data fits. It reports whether ctx ended first.
func (l *outputLog) await(ctx context.Context, data []byte) bool {
	for {
		l.mu.Lock()
		fits, wake := l.fits(data), l.wake
		l.mu.Unlock()
		if fits {
			return true
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return false
		}
	}
}

// release stops waiting for the caller that started the command.
func (l *outputLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		l.held = false
		l.changed()
	}
}

func (l *outputLog) append(stream int, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const join = 16 << 10 // small pieces grow up to this
	if n := len(l.pieces); n > 0 && l.pieces[n-1].stream == stream && len(l.pieces[n-1].data)+len(data) <= join {
		l.pieces[n-1].data = append(l.pieces[n-1].data, data...)
	} else {
		l.pieces = append(l.pieces, piece{stream, l.end, bytes.Clone(data)})
	}
	l.end += int64(len(data))
	for l.end-l.start() > logSize || len(l.pieces) > logPieces {
		first := &l.pieces[0]
		over := l.end - first.off - logSize
		if over < int64(len(first.data)) && len(l.pieces) <= logPieces {
			first.data, first.off = first.data[over:], first.off+over
			break
		}
		l.pieces = l.pieces[1:]
	}
	l.changed()
}

// start is the offset of the first byte kept.
func (l *outputLog) start() int64 {
	if len(l.pieces) == 0 {
		return l.end
	}
	return l.pieces[0].off
}

func (l *outputLog) commandEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.changed()
}

// after returns the first piece that holds bytes from off on, cut and copied.
func (l *outputLog) after(off int64) (piece, bool) {
	n, _ := slices.BinarySearchFunc(l.pieces, off, func(p piece, off int64) int {
		if p.off+int64(len(p.data)) > off {
			return 1
		}
		return -1
	})
	if n == len(l.pieces) {
		return piece{}, false
	}
	p := l.pieces[n]
	if cut := off - p.off; cut > 0 {
		p.data, p.off = p.data[cut:], off
	}
	p.data = bytes.Clone(p.data)
	return p, true
}

// tail returns the offset where the last n lines begin.
func (l *outputLog) tail(n int) int64 {
	for i := len(l.pieces) - 1; i >= 0; i-- {
		p := l.pieces[i]
		for j := len(p.data) - 1; j >= 0; j-- {
			if at := p.off + int64(j) + 1; p.data[j] == '\n' && at != l.end {
				if n--; n == 0 {
					return at
				}
			}
		}
	}
	return l.start()
}

// write adds output of the command.
func (l *outputLog) write(ctx context.Context, stream int, b []byte) (int, error) {
	if !l.await(ctx, b) {
		return 0, errKilled
	}
	l.append(stream, b)
	return len(b), nil
}

// close marks that no more output will be written.
func (l *outputLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed()
}

// logStream reads one stream of a log, including new output until it is closed.
type logStream struct {
	log    *outputLog
	ctx    context.Context
	stream int
	off    int64
	rest   []byte
	// starter says that it is read by who started the command.
	starter bool
}

func (s *logStream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		s.log.mu.Lock()
		p, ok := s.log.after(s.off)
		closed, wake := s.log.closed, s.log.wake
		s.log.mu.Unlock()
		switch {
		case s.ctx.Err() != nil:
			return 0, io.EOF
		case ok:
			s.off = p.off + int64(len(p.data))
			if p.stream == s.stream {
				s.rest = p.data
			}
			s.reached()
		case closed:
			return 0, io.EOF
		default:
			select {
			case <-wake:
			case <-s.ctx.Done():
				return 0, io.EOF
			}
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// reached records how far the log was read.
func (s *logStream) reached() {
	if !s.starter {
		return
	}
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.got[s.stream] = s.off
	s.log.changed()
}

// logReader reads both streams of a log.
type logReader struct {
	log    *outputLog
	ctx    context.Context
	cancel context.CancelFunc
	follow bool
	off    int64
	until  int64 // the end, unless following
}

var _ driver.LogReader = (*logReader)(nil)

func newLogReader(c *command, opts driver.LogOptions) *logReader {
	r := &logReader{log: c.log, follow: opts.Follow}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.until = r.log.end
	if opts.Tail > 0 {
		r.off = r.log.tail(opts.Tail)
	}
	return r
}

func (r *logReader) Next() (sandbox.LogChunk, error) {
	for {
		r.log.mu.Lock()
		p, ok := r.log.after(r.off)
		ended, wake := r.log.ended, r.log.wake
		r.log.mu.Unlock()
		switch {
		case r.ctx.Err() != nil:
			return sandbox.LogChunk{}, io.EOF
		case ok && (r.follow || p.off < r.until):
			c := sandbox.LogChunk{Stream: p.stream, Data: p.data, Dropped: p.off - r.off}
			if over := p.off + int64(len(p.data)) - r.until; !r.follow && over > 0 {
				c.Data = c.Data[:int64(len(c.Data))-over]
			}
			r.off = p.off + int64(len(p.data))
			return c, nil
		case !r.follow || ended:
			return sandbox.LogChunk{}, io.EOF
		}
		select {
		case <-wake:
		case <-r.ctx.Done():
		}
	}
}

func (r *logReader) Close() error {
	r.cancel()
	return nil
}
