package guestkit

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// link is a connection to the guest: the input and output of a process that
// joined it. Reading and writing are for one goroutine each.
type link struct {
	program Program
	alive   *time.Timer // ends the link when nothing is heard
	ctx     context.Context
	cancel  context.CancelFunc

	rest []byte // output that was not read yet

	mu      sync.Mutex
	changed sync.Cond
	pending []byte // input that was not sent yet
	closed  bool
	silent  bool  // it was ended because nothing was heard
	exit    *Exit // the process has ended
	err     error // why nothing can be sent
}

const (
	// silence is how long nothing may be heard of a process.
	silence = 150 * time.Second
	// lastWords is how long the end of a process is awaited that takes no input.
	lastWords = 2 * time.Second
	// parting is how long it may take to tell the process that it is over.
	parting = 5 * time.Second
	// maxPending is how much input waits to be sent before its writer does.
	maxPending = 2 << 20
)

func newLink(p Program) *link {
	l := &link{program: p}
	l.changed.L = &l.mu
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.alive = time.AfterFunc(silence, l.giveUp)
	go l.write()
	return l
}

// giveUp ends a link that was silent for too long.
func (l *link) giveUp() {
	l.mu.Lock()
	l.silent = true
	l.mu.Unlock()
	l.program.Close()
}

// Read returns output of the process.
func (l *link) Read(b []byte) (int, error) {
	for len(l.rest) == 0 {
		if err := l.exited(); err != nil {
			return 0, err
		}
		data, err := l.program.Receive()
		if err != nil {
			return 0, l.broken(err)
		}
		l.heard()
		l.rest = data
	}
	n := copy(b, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// heard notes that the other side lives.
func (l *link) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !l.closed {
		l.alive.Reset(silence)
	}
}

// exited is the end of the process, if it was seen.
func (l *link) exited() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.exit == nil {
		return nil
	}
	return l.exit
}

// broken is why nothing more is received. It is never the error of a context,
// because that would look like the caller's.
func (l *link) broken(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var known *sandbox.Error
	switch {
	case errors.As(err, &l.exit):
		return l.exit
	case l.closed:
		return io.ErrClosedPipe
	case l.err != nil:
		return l.err
	case l.silent || !errors.As(err, &known):
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the connection to the sandbox was lost"}
	}
	return err
}

// Write keeps b to be sent.
func (l *link) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := b; len(rest) > 0; {
		for len(l.pending) >= maxPending && l.err == nil && !l.closed {
			l.changed.Wait()
		}
		if l.closed {
			return 0, io.ErrClosedPipe
		}
		if l.err != nil {
			return 0, l.err
		}
		n := min(len(rest), guest.MaxJoin)
		l.pending = binary.BigEndian.AppendUint32(l.pending, uint32(n))
		l.pending = append(l.pending, rest[:n]...)
		rest = rest[n:]
		l.changed.Broadcast()
	}
	return len(b), nil
}

// write sends pending input at once, and periodic keepalives.
func (l *link) write() {
	ping := time.AfterFunc(guest.JoinSilence/3, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.pending) == 0 {
			l.pending = make([]byte, guest.JoinHeader)
			l.changed.Broadcast()
		}
	})
	defer ping.Stop()
	for {
		data := l.next()
		if data == nil {
			return
		}
		err := l.program.Send(l.ctx, data)
		ping.Reset(guest.JoinSilence / 3)
		if err != nil {
			l.mu.Lock()
			l.err = err
			if l.ctx.Err() != nil {
				l.err = io.ErrClosedPipe
			} else {
				l.alive.Reset(lastWords) // lets the reader time out if the process is silent
			}
			l.changed.Broadcast()
			l.mu.Unlock()
			return
		}
	}
}

// next waits for input to send. It is nil when the link was closed.
func (l *link) next() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) == 0 && !l.closed {
		l.changed.Wait()
	}
	if l.closed {
		return nil
	}
	data := l.pending
	l.pending = nil
	l.changed.Broadcast()
	return data
}

// bye is a frame that makes no sense, on which the process ends.
var bye = []byte{0xff, 0xff, 0xff, 0xff}

// Close ends the process and what waits for the link.
func (l *link) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	sendable := l.err == nil && !l.silent && l.exit == nil
	l.changed.Broadcast()
	l.alive.Stop()
	l.mu.Unlock()
	if !first {
		return nil
	}
	l.cancel()
	err := l.program.Close()
	if sendable {
		// No caller waits for it; if it fails, the other side notices the
		// silence.
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), parting)
			defer cancel()
			_ = l.program.Send(ctx, bye)
		}()
	}
	return err
}
