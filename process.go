package atoll

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// Process is a connection to one command. Its methods may be called
// concurrently, but Stdin, Stdout and Stderr may each have only one user at a
// time.
//
// A command that writes more than the buffers hold blocks until the caller
// reads. A background command does not block: its output goes to a bounded log,
// which drops the oldest bytes.
//
// When the connection is lost, or the daemon restarts, the Process reconnects:
// to a command with a Hold for as long as the Hold, to a background command for
// a minute. The streams continue where they stopped. With a Hold, no byte is
// lost or repeated.
type Process struct {
	sandbox *Sandbox
	info    sandbox.ProcessInfo
	stdin   input
	outputs [3]flow       // by channel
	search  time.Duration // how long to try to reconnect; zero: not at all
	skip    bool          // if output is not kept any more, continue with the oldest kept

	ended chan struct{} // closed once exit or err is known
	once  sync.Once
	exit  sandbox.Exit
	err   error

	life    context.Context // ends when the process is closed
	quit    context.CancelFunc
	done    chan struct{} // closed when the last connection has ended
	cut     error         // valid then: why the streams ended early
	closing sync.Once

	kept    atomic.Bool // it has become a background command
	answers chan error  // to requests of Background

	mu  sync.Mutex
	now *connection // the current connection, or the last
}

// reconnectSearch is how long a Process tries to reconnect to a background
// command.
const reconnectSearch = time.Minute

// Exec starts a command. The context bounds the start only. The caller closes
// the Process, which kills the command unless it runs in the background.
func (s *Sandbox) Exec(ctx context.Context, cmd sandbox.Command) (*Process, error) {
	c, err := commandOf(&cmd)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "process.exec", Message: "cannot be sent", Cause: err}
	}
	p := &Process{sandbox: s, search: cmd.Hold}
	if err := p.start(ctx, s.path("/exec"), &stream.Message{Type: "start", Command: text}); err != nil {
		return nil, err
	}
	if !cmd.Stdin && cmd.TTY == nil {
		_ = p.stdin.Close() // the command may have ended already
	}
	return p, nil
}

// Reconnect connects to a background command. Output begins with the oldest
// byte that is kept, and then follows live. The caller closes the Process; the
// command keeps running.
func (s *Sandbox) Reconnect(ctx context.Context, id string) (*Process, error) {
	p := &Process{sandbox: s, search: reconnectSearch, skip: true}
	if err := p.start(ctx, s.attachPath(id, stream.Position{}, true), nil); err != nil {
		return nil, err
	}
	return p, nil
}

// Position is an offset in each stream of a command, in bytes since its start.
type Position struct{ Stdin, Stdout, Stderr int64 }

// Rejoin connects to a background command, or to one with a Hold. An earlier
// connection to the command ends. Output begins at the position from. If that
// output is not kept any more, Rejoin returns CodeExhausted, or with skip
// begins with the oldest byte kept. The returned position is where output
// begins, and how much input the command has read: the caller continues from
// there. Closing the Process kills a command with a Hold.
func (s *Sandbox) Rejoin(ctx context.Context, id string, from Position, skip bool) (*Process, Position, error) {
	p := &Process{sandbox: s, skip: skip}
	if err := p.start(ctx, s.attachPath(id, stream.Position(from), skip), nil); err != nil {
		return nil, Position{}, err
	}
	var at Position
	if base := p.current().base; base != nil {
		at = Position(*base)
	}
	return p, at, nil
}

// attachPath returns the request path of a connection to a running command.
func (s *Sandbox) attachPath(id string, from stream.Position, skip bool) string {
	query := url.Values{}
	query.Set("stdout", strconv.FormatInt(from.Stdout, 10))
	query.Set("stderr", strconv.FormatInt(from.Stderr, 10))
	query.Set("skip", strconv.FormatBool(skip))
	return s.processPath(id, "/attach?"+query.Encode())
}

// start opens the first connection.
func (p *Process) start(ctx context.Context, path string, first *stream.Message) error {
	c, info, err := p.sandbox.connect(ctx, path, first)
	if err != nil {
		return err
	}
	p.info, p.now = info, c
	p.life, p.quit = context.WithCancel(context.Background())
	p.ended, p.done, p.answers = make(chan struct{}), make(chan struct{}), make(chan error, 1)
	if c.base == nil {
		p.search = 0 // the command cannot be rejoined
	}
	p.stdin.p, p.stdin.at, p.stdin.keep = p, c, p.search > 0 && !p.skip
	for i := range p.outputs {
		p.outputs[i] = flow{p: p, channel: i, at: c}
	}
	go p.run(c)
	return nil
}

// greet sends the start message, if there is one, and waits for the reply.
func greet(ctx context.Context, link *stream.Link, start *stream.Message) (m stream.Message, err error) {
	if start != nil {
		if err := link.Send(ctx, *start); err != nil {
			return m, client.TransportError(ctx, err)
		}
	}
	m, err = link.Receive(ctx)
	switch {
	case err != nil:
		return m, client.TransportError(ctx, err)
	case m.Type == "error":
		if err := client.ParseProblem(m.Error); err != nil {
			return m, err
		}
	case m.Type == "started" && m.Process != nil:
		return m, nil
	}
	return m, client.TransportError(ctx, errors.New("unexpected answer from the daemon"))
}

func (p *Process) finish(exit sandbox.Exit, err error) {
	p.once.Do(func() {
		p.exit, p.err = exit, err
		close(p.ended)
	})
}

// Info returns the id of the command within its sandbox and, once it has ended,
// its exit. It makes no request.
func (p *Process) Info() sandbox.ProcessInfo {
	info := p.info
	info.Args, info.Background = slices.Clone(info.Args), info.Background || p.kept.Load()
	select {
	case <-p.ended:
		if p.err == nil {
			exit := p.exit
			info.Running, info.Exit = false, &exit
		}
	default:
	}
	if info.Exit != nil {
		exit := *info.Exit
		info.Exit = &exit
	}
	return info
}

// Stdin is the command's standard input. Closing it sends the end of input.
func (p *Process) Stdin() io.WriteCloser { return &p.stdin }

// Stdout is the command's standard output. It ends with io.EOF when the command
// and all processes that inherited the stream have closed it.
func (p *Process) Stdout() io.Reader { return &p.outputs[stream.Stdout] }

// Stderr is like Stdout. It is empty for a command on a terminal.
func (p *Process) Stderr() io.Reader { return &p.outputs[stream.Stderr] }

// Signal sends a signal, by its Linux number, to the command's process group.
// A command that has ended is CodeNotFound.
func (p *Process) Signal(ctx context.Context, sig int) error {
	if sig < 1 || sig > 64 {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "process.signal", Subject: "signal", Message: "is not between 1 and 64"}
	}
	select {
	case <-p.ended:
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "process.signal", Subject: p.info.ID, Message: "the command has ended"}
	default:
		return p.send(ctx, stream.Message{Type: "signal", Signal: sig})
	}
}

// Resize sets the size of the terminal; without one it is CodeInvalid. A command
// that has ended may be CodeNotFound.
func (p *Process) Resize(ctx context.Context, size sandbox.WindowSize) error {
	check := sandbox.Command{Args: []string{"-"}, TTY: &size}
	if err := check.Validate(); err != nil {
		return err
	}
	if !p.info.TTY {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "process.resize", Subject: p.info.ID, Message: "the command has no terminal"}
	}
	return p.send(ctx, stream.Message{Type: "resize", Size: &size})
}

// send sends a message to the daemon, if necessary over the next connection. The
// daemon closes the last one after the command has ended: then nothing can be
// sent, and the error is CodeNotFound.
func (p *Process) send(ctx context.Context, m stream.Message) error {
	for c := p.current(); ; {
		err := c.link.Send(ctx, m)
		if err == nil {
			return nil
		}
		if c = c.successor(ctx); c != nil {
			continue
		}
		select {
		case <-p.ended:
			if p.err == nil {
				return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "process." + m.Type, Subject: p.info.ID, Message: "the command has ended"}
			}
		default:
		}
		return client.TransportError(ctx, err)
	}
}

// Background makes a command on a terminal that was started with a Hold a
// background command: it goes on when the Process is closed or lost, and
// [Sandbox.Reconnect] finds it. Any other command is CodeConflict; an older
// daemon or sandbox is CodeUnsupported. The Process stays connected. One call at
// a time.
func (p *Process) Background(ctx context.Context) error {
	if err := p.send(ctx, stream.Message{Type: "background"}); err != nil {
		return err
	}
	late := time.NewTimer(answerTime)
	defer late.Stop()
	select {
	case err := <-p.answers:
		p.kept.Store(err == nil)
		return err
	case <-p.ended:
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "process.background", Subject: p.info.ID, Message: "the command has ended"}
	case <-late.C: // it does not know the request, or the connection was replaced
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "process.background", Subject: p.info.ID, Message: "the daemon does not answer", Hint: "try again, or update the daemon"}
	case <-ctx.Done():
		return client.TransportError(ctx, ctx.Err())
	}
}

// answerTime is how long Background waits for an answer.
const answerTime = 10 * time.Second

// backgrounded receives the answer to a request of Background: a problem or
// nothing.
func (p *Process) backgrounded(problem json.RawMessage) {
	var err error
	if problem != nil {
		err = client.ParseProblem(problem)
	}
	select {
	case p.answers <- err:
	default: // nobody asked
	}
}

// Wait blocks until the command has ended. It may be called several times and
// concurrently. It does not wait until the output is read.
func (p *Process) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-p.ended:
		return p.exit, p.err
	case <-ctx.Done():
		return sandbox.Exit{}, client.TransportError(ctx, ctx.Err())
	}
}

// Close closes the connection. A background command keeps running; any other is
// killed with all its processes. Close is idempotent.
func (p *Process) Close() error {
	p.closing.Do(func() {
		p.quit()
		_ = p.current().link.Close() // the daemon may have ended the link already
		<-p.done
	})
	return nil
}

// Detach drops the connection as if it had been lost. A command with a Hold
// waits for its caller to rejoin; a background command keeps running. The
// processes of any other command get SIGHUP, and SIGKILL 10 s later.
func (p *Process) Detach() error {
	p.closing.Do(func() {
		p.quit()
		p.current().link.Abort()
		<-p.done
	})
	return nil
}

// String returns the standard output of the command. If the command failed, the
// exit and the standard error follow.
func (r Result) String() string {
	if r.Exit.Reason == sandbox.ReasonExited && r.Exit.Code == 0 {
		return string(r.Stdout)
	}
	var b strings.Builder
	b.Write(r.Stdout)
	if b.Len() > 0 && !bytes.HasSuffix(r.Stdout, []byte("\n")) {
		b.WriteByte('\n')
	}
	b.WriteString(r.Exit.String())
	if text := bytes.TrimSpace(r.Stderr); len(text) > 0 {
		b.WriteString(": ")
		b.Write(text)
	}
	return b.String()
}

// ReadFile returns the content of a regular file. It reads the whole file into
// memory; see [Files.Read] for large files.
func (s *Sandbox) ReadFile(ctx context.Context, path string) ([]byte, error) {
	r, err := s.Files().Read(ctx, path, ReadOptions{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// WriteFile creates or replaces a regular file atomically, and creates missing
// parent directories.
func (s *Sandbox) WriteFile(ctx context.Context, path string, data []byte, opts ...WriteOptions) error {
	_, err := s.Files().Write(ctx, path, bytes.NewReader(data), optional(opts))
	return err
}

// optional returns the first element of opts, or the zero value.
func optional[T any](opts []T) (o T) {
	if len(opts) > 0 {
		o = opts[0]
	}
	return o
}

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
