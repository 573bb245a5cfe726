package fake

import (
	"context"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	sigKill = int(syscall.SIGKILL)
	sigTerm = int(syscall.SIGTERM)
)

// harmless are the signals that do not end a process.
var harmless = []syscall.Signal{
	0, syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGURG, syscall.SIGWINCH,
}

// command is a command that was started through the API, or what a shell runs
// in the background. Any number of processes, in the sense of the driver, are
// connected to it.
type command struct {
	sandbox *fakeSandbox
	cmd     sandbox.Command
	parent  *command // of what a shell runs in the background
	ctx     context.Context
	cancel  context.CancelFunc
	stdin   *pipe
	out     [2]*pipe   // of a command in the foreground
	log     *outputLog // of a background command
	timer   *time.Timer
	done    chan struct{}
	quiet   chan struct{} // closed when nothing of it runs any more

	mu       sync.Mutex
	info     sandbox.ProcessInfo
	sig      int // what ends it
	timedOut bool
	refs     int // itself and its background programs
}

// streams makes the command's input and output.
func (c *command) streams() {
	if c.cmd.Stdin {
		c.stdin = newPipe()
	}
	if c.cmd.Background {
		c.log = newOutputLog()
		c.log.held = true // until its starter releases it
		return
	}
	c.out = [2]*pipe{newPipe(), newPipe()}
}

// write writes to one of the two outputs.
func (c *command) write(stream int) func(context.Context, []byte) (int, error) {
	return func(ctx context.Context, b []byte) (int, error) {
		if c.sandbox.gate(ctx) != nil {
			return 0, errKilled
		}
		if c.log != nil {
			return c.log.write(ctx, stream, b)
		}
		return c.out[stream-1].write(ctx, b)
	}
}

// hold adds a writer of the command's output; release removes one.
func (c *command) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refs++
}

func (c *command) release() {
	c.mu.Lock()
	c.refs--
	last := c.refs == 0
	c.mu.Unlock()
	if !last {
		return
	}
	if c.stdin != nil {
		c.stdin.closeRead()
	}
	if c.log != nil {
		c.log.close()
	}
	for _, p := range c.out {
		if p != nil {
			p.closeWrite()
		}
	}
	c.cancel()
	close(c.quiet)
}

// timeout kills the command and everything that it has started.
func (c *command) timeout() {
	c.mu.Lock()
	c.timedOut = c.info.Running
	c.mu.Unlock()
	c.kill(sigKill)
}

// kill sends a signal, and reports whether the command could get it.
func (c *command) kill(sig int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.info.Running {
		return false
	}
	if c.sig == 0 && !slices.Contains(harmless, syscall.Signal(sig)) {
		c.sig = sig
		c.cancel()
	}
	return true
}

// finish records the command's end, the first time it is called.
func (c *command) finish(code int) {
	sandboxExit := c.sandbox.ended()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.info.Running {
		return
	}
	if c.sig == 0 && c.ctx.Err() != nil { // with the sandbox, or with its parent
		c.sig = sigKill
	}
	exit := sandbox.Exit{Code: code & 0xff, Reason: sandbox.ReasonExited}
	if c.sig != 0 {
		exit = sandbox.Exit{Code: 128 + c.sig, Signal: c.sig, Reason: sandbox.ReasonSignaled}
	}
	switch {
	case c.sig == sigKill && c.timedOut:
		exit.Reason, exit.Detail = sandbox.ReasonTimeout, "the command's time was over"
	case c.sig == sigKill && sandboxExit != nil:
		exit.Reason, exit.Detail = sandboxExit.Reason, sandboxExit.Detail
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.info.Running, c.info.Exit = false, &exit
	close(c.done)
	if c.log != nil {
		c.log.commandEnded()
	}
}

func (c *command) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// listed reports whether it is a separate command. Background programs of a
// shell become commands when the shell has ended.
func (c *command) listed() bool { return c.parent == nil || c.parent.ended() && !c.ended() }

func (c *command) describe() sandbox.ProcessInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	info := c.info
	info.Args = slices.Clone(info.Args)
	if info.Exit != nil {
		exit := *info.Exit
		info.Exit = &exit
	}
	return info
}

func (c *command) signal(op string, sig int) error {
	if sig < 0 || sig > 64 {
		return fail(sandbox.CodeInvalid, op, "signal", "no such signal")
	}
	if !c.kill(sig) {
		return fail(sandbox.CodeNotFound, op, c.info.ID, "the process has ended")
	}
	return nil
}

// process is a connection to a command.
type process struct {
	*command
	provider *Provider
	joined   bool // it was made by Reconnect
	cancel   context.CancelFunc
	closed   <-chan struct{} // nil if Close ends the command
	stdout   io.Reader
	stderr   io.Reader
}

var _ driver.Process = (*process)(nil)

// connect returns a connection to a command.
func (i *instance) connect(c *command, joined bool) *process {
	p := &process{command: c, provider: i.provider, joined: joined}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	if c.log != nil {
		p.closed = ctx.Done()
		p.stdout = &logStream{log: c.log, ctx: ctx, stream: 1, starter: !joined}
		p.stderr = &logStream{log: c.log, ctx: ctx, stream: 2, starter: !joined}
	} else {
		p.stdout, p.stderr = boundReader{context.Background(), c.out[0].read}, boundReader{context.Background(), c.out[1].read}
	}
	return p
}

func (p *process) Info() sandbox.ProcessInfo { return p.describe() }
func (p *process) Stdin() io.WriteCloser     { return stdin{p.command.stdin} }
func (p *process) Stdout() io.Reader         { return p.stdout }
func (p *process) Stderr() io.Reader         { return p.stderr }

// Signal signals the command.
func (p *process) Signal(ctx context.Context, sig int) error {
	if err := p.provider.begin(ctx, "process.signal"); err != nil {
		return err
	}
	return p.signal("process.signal", sig)
}

// Resize refuses: there are no terminals.
func (p *process) Resize(ctx context.Context, _ sandbox.WindowSize) error {
	if err := p.provider.begin(ctx, "process.resize"); err != nil {
		return err
	}
	return fail(sandbox.CodeInvalid, "process.resize", p.info.ID, "the command has no terminal")
}

// Wait blocks until the command has ended.
func (p *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	if err := p.provider.begin(ctx, "process.wait"); err != nil {
		return sandbox.Exit{}, err
	}
	select {
	case <-p.done:
		return *p.describe().Exit, nil
	case <-p.closed:
		return sandbox.Exit{}, fail(sandbox.CodeUnavailable, "process.wait", p.info.ID, "the connection to the command is closed")
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close disconnects from the command.
func (p *process) Close() error {
	p.cancel()
	switch {
	case p.joined:
	case p.log != nil:
		p.log.release()
	default:
		killed := p.kill(sigKill)
		for _, out := range p.out {
			out.discard() // background programs may continue to write
		}
		if <-p.done; killed {
			<-p.quiet
		}
	}
	return nil
}

// stdin is the writing end of a command's input, if it has one.
type stdin struct{ p *pipe }

func (s stdin) Write(b []byte) (int, error) {
	if s.p == nil {
		return 0, fail(sandbox.CodeInvalid, "process.stdin", "", "the command was started without input")
	}
	n, err := s.p.write(context.Background(), b)
	if err != nil {
		err = fail(sandbox.CodeNotFound, "process.stdin", "", "the command no longer reads input")
	}
	return n, err
}

func (s stdin) Close() error {
	if s.p != nil {
		s.p.closeWrite()
	}
	return nil
}
