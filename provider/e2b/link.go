package e2b

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// link is a connection to the guest: the input and output of a process that
// joined it. Reading and writing are for one goroutine each.
type link struct {
	in     *inside
	stream *connect.ServerStreamForClient[envd.ProcessResponse]
	send   func(ctx context.Context, data []byte) error
	ctx    context.Context
	cancel context.CancelFunc
	alive  *time.Timer // ends the link when nothing is heard

	rest   []byte // output that was not read yet
	stderr []byte
	end    *envd.EndEvent

	mu      sync.Mutex
	changed sync.Cond
	pending []byte // input that was not sent yet
	closed  bool
	err     error // why nothing can be sent
}

// lastWords is how long the end of a process is awaited that takes no input.
const lastWords = 2 * time.Second

// maxPending is how much input waits to be sent before its writer does.
const maxPending = 2 << 20

// dial starts a process and connects with it. The context bounds the start
// only; the caller closes the link.
func (in *inside) dial(ctx context.Context, req *envd.StartRequest) (*link, error) {
	l := &link{in: in}
	l.changed.L = &l.mu
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, l.cancel)
	l.alive = time.AfterFunc(deadline, l.cancel)
	err := l.open(req)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		l.Close()
		return nil, in.explain(ctx, err)
	}
	go l.write()
	return l, nil
}

// open waits for the first message, which names the process.
func (l *link) open(req *envd.StartRequest) (err error) {
	if l.stream, err = l.in.start(l.ctx, req); err != nil {
		return err
	}
	for l.stream.Receive() {
		l.alive.Reset(deadline)
		ev := l.stream.Msg().Event
		if ev != nil && ev.Start != nil {
			l.send = l.in.input(ev.Start.PID)
			return nil
		}
	}
	if err := l.stream.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// Read returns output of the process.
func (l *link) Read(b []byte) (int, error) {
	for len(l.rest) == 0 {
		if l.end != nil {
			return 0, l.ended()
		}
		if !l.stream.Receive() {
			return 0, l.broken()
		}
		l.heard()
		ev := l.stream.Msg().Event
		switch {
		case ev == nil:
		case ev.End != nil:
			l.end = ev.End
		case ev.Data != nil:
			l.rest = ev.Data.Stdout
			l.stderr = append(l.stderr, ev.Data.Stderr[:min(len(ev.Data.Stderr), maxMessage-len(l.stderr))]...)
		}
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
		l.alive.Reset(deadline)
	}
}

// broken is why the stream ended without the end of the process. It is no error
// of a context, which would be taken for the caller's.
func (l *link) broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch err := l.stream.Err(); {
	case l.closed:
		return io.ErrClosedPipe
	case l.err != nil:
		return l.err
	case err != nil && l.ctx.Err() == nil:
		return l.in.explain(l.ctx, err)
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the connection to the sandbox was lost"}
}

// missing is the exit status that says that the guest's program is not there.
const missing = 77

// errMissing says that the guest has to be uploaded first.
var errMissing = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the guest is not in the sandbox"}

func (l *link) ended() error {
	if l.end.ExitCode == missing {
		return errMissing
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Message: fmt.Sprintf("the guest cannot be joined: %s %q", clip(l.end.Status), l.stderr),
	}
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

// write sends input as it comes, all that waits at once, and now and then that
// the caller lives.
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
		l.mu.Lock()
		for len(l.pending) == 0 && !l.closed {
			l.changed.Wait()
		}
		data := l.pending
		l.pending = nil
		closed := l.closed
		l.changed.Broadcast()
		l.mu.Unlock()
		if closed {
			return
		}
		err := l.send(l.ctx, data)
		ping.Reset(guest.JoinSilence / 3)
		if err != nil {
			l.mu.Lock()
			l.err = l.in.explain(context.Background(), err)
			l.alive.Reset(lastWords) // the reader shall know, if the process says no more
			l.changed.Broadcast()
			l.mu.Unlock()
			return
		}
	}
}

// bye is a frame that makes no sense, on which the process ends.
var bye = []byte{0xff, 0xff, 0xff, 0xff}

// parting is how long it may take to tell the process that it is over.
const parting = 5 * time.Second

// Close ends the process and what waits for the link.
func (l *link) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	sendable := l.err == nil && l.send != nil && l.ctx.Err() == nil
	l.changed.Broadcast()
	l.alive.Stop()
	l.mu.Unlock()
	if !first {
		return nil
	}
	l.cancel()
	if sendable {
		// Nobody waits for it: what cannot be told is found out by silence.
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), parting)
			defer cancel()
			_ = l.send(ctx, bye)
		}()
	}
	return nil
}
