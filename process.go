package atoll

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// Process is one command, connected to the caller. Its methods may be called
// concurrently, but Stdin, Stdout and Stderr each want one user at a time.
//
// Output waits for its reader: a command that writes more than the buffers hold
// stops until the caller reads, unless it runs in the background, where output
// beyond a bounded log is dropped, oldest first.
type Process struct {
	link  *stream.Link
	info  sandbox.ProcessInfo
	stdin io.WriteCloser

	ended chan struct{} // closed once exit or err is known
	once  sync.Once
	exit  sandbox.Exit
	err   error

	done    chan struct{} // closed when the link has ended
	closing sync.Once
}

// Exec starts a command. The context bounds the start only. The caller closes
// the process, which kills the command unless it runs in the background.
func (s *Sandbox) Exec(ctx context.Context, cmd sandbox.Command) (*Process, error) {
	c, err := commandOf(&cmd)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "process.exec", Message: "cannot be sent", Cause: err}
	}
	p, err := s.connect(ctx, s.path("/exec"), &stream.Message{Type: "start", Command: text})
	if err != nil {
		return nil, err
	}
	if !cmd.Stdin && cmd.TTY == nil {
		_ = p.stdin.Close() // the command may have ended already
	}
	return p, nil
}

// Reconnect connects to a background command: its log from the oldest byte
// kept, and then live. Closing the process leaves the command alone.
func (s *Sandbox) Reconnect(ctx context.Context, id string) (*Process, error) {
	return s.connect(ctx, s.processPath(id, "/attach"), nil)
}

// connect opens a stream, says what to run, and waits until it runs.
func (s *Sandbox) connect(ctx context.Context, path string, start *stream.Message) (*Process, error) {
	ws, err := s.client.webSocket(ctx, path)
	if err != nil {
		return nil, err
	}
	link := stream.New(context.Background(), ws)
	info, err := greet(ctx, link, start)
	if err != nil {
		link.Abort()
		return nil, err
	}
	p := &Process{link: link, info: info, stdin: link.Writer(stream.Stdin), ended: make(chan struct{}), done: make(chan struct{})}
	go p.run()
	return p, nil
}

// greet says what to run and waits for the answer.
func greet(ctx context.Context, link *stream.Link, start *stream.Message) (info sandbox.ProcessInfo, err error) {
	if start != nil {
		if err := link.Send(ctx, *start); err != nil {
			return info, transportError(ctx, err)
		}
	}
	m, err := link.Receive(ctx)
	switch {
	case err != nil:
		return info, transportError(ctx, err)
	case m.Type == "error":
		if err := parseProblem(m.Error); err != nil {
			return info, err
		}
	case m.Type == "started" && m.Process != nil:
		return *m.Process, nil
	}
	return info, transportError(ctx, errors.New("the answer makes no sense"))
}

// run receives until the link ends.
func (p *Process) run() {
	defer close(p.done)
	err := p.link.Run(func(m stream.Message) {
		switch {
		case m.Type == "exit" && m.Exit != nil:
			p.finish(*m.Exit, nil)
		case m.Type == "error":
			p.finish(sandbox.Exit{}, parseProblem(m.Error))
		}
	})
	p.finish(sandbox.Exit{}, &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "process.wait", Message: "the connection ended before the command", Cause: err,
	})
}

func (p *Process) finish(exit sandbox.Exit, err error) {
	p.once.Do(func() {
		p.exit, p.err = exit, err
		close(p.ended)
	})
}

// Info tells the identity the command has within its sandbox.
func (p *Process) Info() sandbox.ProcessInfo { return p.info }

// Stdin is the command's input; closing it is the end of input.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// Stdout ends with io.EOF when the command, and all that inherited the stream,
// have closed it.
func (p *Process) Stdout() io.Reader { return p.link.Reader(stream.Stdout) }

// Stderr is as Stdout, and empty on a terminal.
func (p *Process) Stderr() io.Reader { return p.link.Reader(stream.Stderr) }

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
	if err := p.link.Send(ctx, m); err != nil {
		return transportError(ctx, err)
	}
	return nil
}

// Wait blocks until the command has ended. It may be called by many and again;
// it does not wait for output to be read.
func (p *Process) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-p.ended:
		return p.exit, p.err
	case <-ctx.Done():
		return sandbox.Exit{}, transportError(ctx, ctx.Err())
	}
}

// Close lets go of the command: a background one runs on, any other is killed
// with all its processes. Close is idempotent.
func (p *Process) Close() error {
	p.closing.Do(func() {
		_ = p.link.Close() // the daemon may have ended the link already
		<-p.done
	})
	return nil
}
