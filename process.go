package atoll

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"slices"
	"strconv"
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

// Resize sets the size of the terminal; without one it is CodeInvalid.
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

func (p *Process) send(ctx context.Context, m stream.Message) error {
	for c := p.current(); ; {
		err := c.link.Send(ctx, m)
		if err == nil {
			return nil
		}
		if c = c.successor(ctx); c == nil {
			return client.TransportError(ctx, err)
		}
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
