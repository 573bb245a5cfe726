package atoll

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// connection is one of the connections to a command, one after the other.
type connection struct {
	link *stream.Link
	base *stream.Position // where its streams begin; nil: the command cannot be rejoined
	turn int              // the how manieth it is
	over chan struct{}    // closed when it is known what comes after it
	next *connection      // valid once over is closed; nil: nothing
}

// connect opens a connection, says what to run, and waits until it runs.
func (s *Sandbox) connect(ctx context.Context, path string, start *stream.Message) (*connection, sandbox.ProcessInfo, error) {
	ws, err := s.client.conn.WebSocket(ctx, path)
	if err != nil {
		return nil, sandbox.ProcessInfo{}, err
	}
	link := stream.New(context.Background(), ws)
	m, err := greet(ctx, link, start)
	if err != nil {
		link.Abort()
		return nil, sandbox.ProcessInfo{}, err
	}
	return &connection{link: link, base: m.At, over: make(chan struct{})}, *m.Process, nil
}

// successor waits for what comes after a connection that was lost. Nil is
// nothing.
func (c *connection) successor(ctx context.Context) *connection {
	select {
	case <-c.over:
		return c.next
	case <-ctx.Done():
		return nil
	}
}

// reached is how far the streams have come.
func (c *connection) reached() stream.Position {
	return stream.Position{
		Stdout: c.base.Stdout + c.link.Arrived(stream.Stdout),
		Stderr: c.base.Stderr + c.link.Arrived(stream.Stderr),
	}
}

func (p *Process) current() *connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// run receives until the last connection has ended.
func (p *Process) run(c *connection) {
	defer close(p.done)
	for {
		overwritten, told := false, false
		err := c.link.Run(func(m stream.Message) {
			switch {
			case m.Type == "exit" && m.Exit != nil:
				p.finish(*m.Exit, nil)
			case m.Type == "error":
				err := client.ParseProblem(m.Error)
				if overwritten = p.skip && sandbox.CodeOf(err) == sandbox.CodeExhausted; !overwritten {
					p.finish(sandbox.Exit{}, err)
					told = true
				}
			}
		})
		c.link.Abort()
		var next *connection
		if p.search > 0 && (err != nil && !told || overwritten) && p.life.Err() == nil {
			next, err = p.rejoin(c)
		}
		p.succeed(c, next)
		if next == nil {
			p.lost(err)
			return
		}
		go p.stdin.catchUp(next)
		c = next
	}
}

// succeed says what comes after a connection.
func (p *Process) succeed(c, next *connection) {
	if next != nil {
		p.mu.Lock()
		p.now = next
		p.mu.Unlock()
		if p.life.Err() != nil { // closed meanwhile, and only the old one was told
			_ = next.link.Close()
		}
	}
	c.next = next
	close(c.over)
}

// lost is the end of a command of which no more can be learnt.
func (p *Process) lost(cause error) {
	code := sandbox.CodeUnavailable
	switch c := sandbox.CodeOf(cause); c {
	case sandbox.CodeGone, sandbox.CodeExhausted, sandbox.CodeUnauthorized:
		code = c // the sandbox is gone, or output is lost, for certain, or the key has ended
	}
	var refused *sandbox.Error
	if p.cut = cause; !errors.As(cause, &refused) {
		p.cut = &sandbox.Error{Code: code, Op: "process.read", Message: "the connection ended before the output", Cause: cause}
	}
	p.finish(sandbox.Exit{}, &sandbox.Error{Code: code, Op: "process.wait", Message: "the connection ended before the command", Cause: cause})
}

// reason is why a stream breaks off whose last connection ended with err: that
// no other could be had says more than how the last one ended.
func (p *Process) reason(err error) error {
	if p.life.Err() != nil {
		return err // it was closed by its caller
	}
	<-p.done
	if p.err != nil {
		return p.err
	}
	return p.cut // the command has ended, and not all of its output came
}

// How long to wait between attempts to find a lost connection again.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// rejoin connects to the command again where a connection was lost.
func (p *Process) rejoin(c *connection) (*connection, error) {
	ctx, cancel := context.WithTimeout(p.life, p.search)
	defer cancel()
	path := p.sandbox.attachPath(p.info.ID, c.reached(), p.skip)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		next, _, err := p.sandbox.connect(ctx, path, nil)
		switch {
		case err == nil && next.base == nil:
			next.link.Abort() // another daemon, which does not know how
			return nil, nil
		case err == nil:
			next.turn = c.turn + 1
			return next, nil
		case sandbox.CodeOf(err) != sandbox.CodeUnavailable:
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// flow is one stream of a command, over all connections.
type flow struct {
	p       *Process
	channel int
	at      *connection
}

// Read reads what arrived on one connection to its end, then from the next.
func (o *flow) Read(b []byte) (int, error) {
	for {
		n, err := o.at.link.Reader(o.channel).Read(b)
		if n > 0 || err == nil || err == io.EOF {
			return n, err
		}
		next := o.at.successor(context.Background())
		if next == nil {
			return 0, o.p.reason(err)
		}
		o.at = next
	}
}

// keptInput is how much of the input is kept to be sent again: more than can be
// on its way between us and the command.
const keptInput = 2 << 20

// input is the input of a command, over all connections.
type input struct {
	p      *Process
	keep   bool // what was sent is kept, to be sent again
	closed atomic.Bool

	mu   sync.Mutex // held by who writes
	at   *connection
	sent int64
	tail []byte // the last of what was sent
}

// Write sends p, and waits for the command to read if it is far behind.
func (w *input) Write(b []byte) (sent int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.keep {
		return w.at.link.Writer(stream.Stdin).Write(b)
	}
	for len(b) > 0 && err == nil {
		if w.closed.Load() {
			return sent, stream.ErrClosed
		}
		n := min(len(b), keptInput/4)
		w.remember(b[:n])
		if err = w.push(b[:n]); err == nil {
			sent += n
		}
		b = b[n:]
	}
	return sent, err
}

func (w *input) remember(b []byte) {
	if len(w.tail) > 2*keptInput {
		w.tail = append([]byte(nil), w.tail[len(w.tail)-keptInput:]...)
	}
	w.tail = append(w.tail, b...)
	w.sent += int64(len(b))
}

// push sends the last bytes of the input, over as many connections as it takes.
func (w *input) push(b []byte) error {
	for {
		_, err := w.at.link.Writer(stream.Stdin).Write(b)
		if err == nil {
			return nil
		}
		next := w.at.successor(context.Background())
		if next == nil {
			return w.p.reason(err)
		}
		if b, err = w.move(next); err != nil {
			return err
		}
	}
}

// move goes over to another connection and returns what is to be sent there
// again.
func (w *input) move(next *connection) ([]byte, error) {
	w.at = next
	missing := w.sent - next.base.Stdin
	if missing < 0 || missing > int64(len(w.tail)) {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "process.stdin", Message: "the command has taken other input than was sent"}
	}
	return w.tail[int64(len(w.tail))-missing:], nil
}

// catchUp sends over a new connection what an earlier one has lost.
func (w *input) catchUp(c *connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.turn > w.at.turn && !w.keep {
		w.at = c
	} else if c.turn > w.at.turn {
		rest, err := w.move(c)
		if err != nil || w.push(rest) != nil {
			return
		}
	}
	if w.closed.Load() {
		_ = w.at.link.Writer(stream.Stdin).Close()
	}
}

// Close ends the input, after what was written.
func (w *input) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	if !w.keep {
		return w.p.current().link.Writer(stream.Stdin).Close()
	}
	// It must not overtake what is being sent again.
	go func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		_ = w.at.link.Writer(stream.Stdin).Close() // else on the next connection
	}()
	return nil
}
