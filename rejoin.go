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

// connection is one of the successive connections to a command.
type connection struct {
	link *stream.Link
	base *stream.Position // where its streams begin; nil: the command cannot be rejoined
	turn int              // sequence number
	over chan struct{}    // closed once next is known
	next *connection      // valid once over is closed; nil: there is none
}

// connect opens a connection, sends start if it is not nil, and waits until the
// daemon confirms that the command runs.
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

// successor waits for the connection that replaces c after it was lost. Nil
// means that there is none.
func (c *connection) successor(ctx context.Context) *connection {
	select {
	case <-c.over:
		return c.next
	case <-ctx.Done():
		return nil
	}
}

// reached returns the offsets up to which output has arrived.
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

// run receives messages, and reconnects, until the last connection has ended.
func (p *Process) run(c *connection) {
	defer close(p.done)
	for {
		overwritten, told := false, false
		err := c.link.Run(func(m stream.Message) {
			switch {
			case m.Type == "exit" && m.Exit != nil:
				p.finish(*m.Exit, nil)
			case m.Type == "background":
				p.backgrounded(m.Error)
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

// succeed sets the connection after c. Nil means that there is none.
func (p *Process) succeed(c, next *connection) {
	if next != nil {
		p.mu.Lock()
		p.now = next
		p.mu.Unlock()
		if p.life.Err() != nil { // Close was called meanwhile, and closed only the old connection
			_ = next.link.Close()
		}
	}
	c.next = next
	close(c.over)
}

// lost ends the Process when the connection could not be restored.
func (p *Process) lost(cause error) {
	code := sandbox.CodeUnavailable
	switch c := sandbox.CodeOf(cause); c {
	case sandbox.CodeGone, sandbox.CodeExhausted, sandbox.CodeUnauthorized:
		code = c // these are final: retrying cannot help
	}
	var refused *sandbox.Error
	if p.cut = cause; !errors.As(cause, &refused) {
		p.cut = &sandbox.Error{Code: code, Op: "process.read", Message: "the connection ended before the output", Cause: cause}
	}
	p.finish(sandbox.Exit{}, &sandbox.Error{Code: code, Op: "process.wait", Message: "the connection ended before the command", Cause: cause})
}

// reason returns the error of a stream whose last connection ended with err.
// Why reconnecting failed is more useful than err.
func (p *Process) reason(err error) error {
	if p.life.Err() != nil {
		return err // it was closed by its caller
	}
	<-p.done
	if p.err != nil {
		return p.err
	}
	return p.cut // the command has ended, but some of its output is missing
}

// Pauses between attempts to reconnect.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// rejoin reconnects to the command after connection c was lost.
func (p *Process) rejoin(c *connection) (*connection, error) {
	ctx, cancel := context.WithTimeout(p.life, p.search)
	defer cancel()
	path := p.sandbox.attachPath(p.info.ID, c.reached(), p.skip)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		next, _, err := p.sandbox.connect(ctx, path, nil)
		switch {
		case err == nil && next.base == nil:
			next.link.Abort() // an older daemon, which cannot rejoin
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

// flow is one output stream of a command, over all connections.
type flow struct {
	p       *Process
	channel int
	at      *connection
}

// Read reads from one connection until its end, then from the next.
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

// keptInput is how many bytes of input are kept for sending again. It is more
// than can be in flight between the client and the command.
const keptInput = 2 << 20

// input is the input of a command, over all connections.
type input struct {
	p      *Process
	keep   bool // keep sent bytes for sending again
	closed atomic.Bool

	mu   sync.Mutex // held while writing
	at   *connection
	sent int64
	tail []byte // the last bytes sent
}

// Write sends b. It blocks if the command does not read.
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

// push sends b. If the connection is lost, it continues on the next one.
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

// move switches to another connection and returns the bytes that must be sent
// again on it.
func (w *input) move(next *connection) ([]byte, error) {
	w.at = next
	missing := w.sent - next.base.Stdin
	if missing < 0 || missing > int64(len(w.tail)) {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "process.stdin", Message: "the daemon reports a wrong input offset"}
	}
	return w.tail[int64(len(w.tail))-missing:], nil
}

// catchUp sends input again that was lost with an earlier connection.
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

// Close ends the input after the bytes written before.
func (w *input) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	if !w.keep {
		return w.p.current().link.Writer(stream.Stdin).Close()
	}
	// The end must not overtake bytes that are being sent again.
	go func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		_ = w.at.link.Writer(stream.Stdin).Close() // else on the next connection
	}()
	return nil
}
