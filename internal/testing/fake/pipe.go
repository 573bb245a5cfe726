package fake

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
)

// errKilled ends every call of a program that is to die.
var errKilled = errors.New("killed")

// pipeSize is how much a pipe holds, as in Linux.
const pipeSize = 64 << 10

// pipe is a byte stream of bounded size.
type pipe struct {
	mu             sync.Mutex
	buf            []byte
	rclosed, ended bool          // the reading end is closed; the writing end is
	discards       bool          // writes are discarded
	wake           chan struct{} // closed at the next change
}

func newPipe() *pipe { return &pipe{wake: make(chan struct{})} }

// change makes a change and wakes all waiting calls.
func (p *pipe) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.wake)
	p.wake = make(chan struct{})
}

func (p *pipe) closeRead()  { p.change(func() { p.rclosed, p.buf = true, nil }) }
func (p *pipe) discard()    { p.change(func() { p.discards, p.buf = true, nil }) }
func (p *pipe) closeWrite() { p.change(func() { p.ended = true }) }

// try moves as many bytes as possible without waiting.
func (p *pipe) try(move func() (n int, err error)) (n int, err error, wake <-chan struct{}) { //nolint:staticcheck // the error is not last because it is not the call's
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err = move()
	if n > 0 {
		close(p.wake)
		p.wake = make(chan struct{})
	}
	return n, err, p.wake
}

func (p *pipe) read(ctx context.Context, b []byte) (int, error) {
	for len(b) > 0 {
		n, err, wake := p.try(func() (int, error) {
			if len(p.buf) == 0 && (p.ended || p.rclosed || p.discards) {
				return 0, io.EOF
			}
			n := copy(b, p.buf)
			p.buf = p.buf[n:]
			return n, nil
		})
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return 0, errKilled
		}
	}
	return 0, nil
}

func (p *pipe) write(ctx context.Context, b []byte) (done int, err error) {
	for done < len(b) {
		n, err, wake := p.try(func() (int, error) {
			if p.rclosed || p.ended {
				return 0, syscall.EPIPE
			}
			if p.discards {
				return len(b) - done, nil
			}
			n := min(len(b)-done, pipeSize-len(p.buf))
			p.buf = append(p.buf, b[done:done+n]...)
			return n, nil
		})
		if err != nil {
			return done, err
		}
		if done += n; n > 0 {
			continue
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return done, errKilled
		}
	}
	return done, nil
}

// boundReader and boundWriter use a stream on behalf of a program: their calls
// end with it.
type boundReader struct {
	ctx  context.Context
	read func(context.Context, []byte) (int, error)
}

func (r boundReader) Read(b []byte) (int, error) { return r.read(r.ctx, b) }

type boundWriter struct {
	ctx   context.Context
	write func(context.Context, []byte) (int, error)
}

func (w boundWriter) Write(b []byte) (int, error) { return w.write(w.ctx, b) }
