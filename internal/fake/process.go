package fake

import (
	"context"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// command is a command that was started through the API; any number of
// processes, in the sense of the driver, are connected to it.
type command struct {
	box    *box
	kernel *kernel.Kernel
	cmd    sandbox.Command
	proc   *kernel.Proc
	tty    *kernel.TTY
	stdin  io.WriteCloser
	out    [2]kernel.File // the reading ends of a foreground command's output
	log    *outputLog     // of a background command
	timer  *time.Timer
	done   chan struct{}

	mu       sync.Mutex
	info     sandbox.ProcessInfo
	timedOut bool
}

// open makes the command's streams and returns the program's descriptors.
func (c *command) open(k *kernel.Kernel) []kernel.File {
	if c.cmd.Background {
		c.log = newOutputLog()
		c.log.held = true // until who starts it lets go
	}
	if c.cmd.TTY != nil {
		return c.openTTY(k)
	}
	files := []kernel.File{kernel.Null(), nil, nil}
	c.stdin = closedStdin{}
	if c.cmd.Stdin {
		pipe := kernel.NewPipe()
		files[0], c.stdin = pipe.Reader(), &stdin{w: pipe.Writer()}
	}
	for n := range c.out {
		if c.log != nil {
			files[n+1] = c.log.writer(n + 1)
			continue
		}
		pipe := kernel.NewPipe()
		c.out[n], files[n+1] = pipe.Reader(), pipe.Writer()
	}
	return files
}

func (c *command) openTTY(k *kernel.Kernel) []kernel.File {
	c.tty = k.NewTTY(c.cmd.TTY.Cols, c.cmd.TTY.Rows)
	files := []kernel.File{c.tty.Slave(), c.tty.Slave(), c.tty.Slave()}
	output := c.tty.Output()
	if c.log != nil {
		w := c.log.writer(1)
		go func() {
			defer w.Close()
			pump(c.box.life, w, output)
		}()
	} else {
		c.out[0] = output
	}
	typing := &typist{tty: c.tty, life: c.box.life}
	c.stdin = typing
	if !c.cmd.Stdin {
		_ = typing.Close() // It types the end-of-file character, which cannot fail yet.
	}
	return files
}

// pump copies a terminal's output to a log, until ctx ends if it must wait.
func pump(ctx context.Context, w, r kernel.File) {
	defer r.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(context.Background(), buf)
		if n > 0 {
			_, _ = w.Write(ctx, buf[:n]) // Nobody wants the rest then.
		}
		if err != nil {
			return
		}
	}
}

// timeout kills the command and its session.
func (c *command) timeout() {
	c.mu.Lock()
	c.timedOut = c.info.Running
	c.mu.Unlock()
	c.kernel.KillSession(c.proc.PID)
}

// finish records the command's end.
func (c *command) finish(sandboxExit *sandbox.Exit) {
	code, sig := c.proc.Exit()
	exit := sandbox.Exit{Code: code, Signal: sig, Reason: sandbox.ReasonExited}
	c.mu.Lock()
	defer c.mu.Unlock()
	if sig != 0 {
		exit.Reason = sandbox.ReasonSignaled
	}
	switch {
	case sig == kernel.SIGKILL && c.timedOut:
		exit.Reason, exit.Detail = sandbox.ReasonTimeout, "the command's time was over"
	case sig == kernel.SIGKILL && sandboxExit != nil:
		exit.Reason, exit.Detail = sandboxExit.Reason, sandboxExit.Detail
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.info.Running, c.info.Exit = false, &exit
	if c.tty != nil {
		c.tty.HangUp()
	}
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
	if c.ended() || !c.kernel.Kill(-c.proc.PID, sig) {
		return fail(sandbox.CodeNotFound, op, c.info.ID, "the process has ended")
	}
	if sig == kernel.SIGKILL {
		c.kernel.KillSession(c.proc.PID)
	}
	return nil
}

// process is a connection to a command.
type process struct {
	*command
	provider *Provider
	joined   bool // it was made by Reconnect
	ctx      context.Context
	cancel   context.CancelFunc
	stdout   io.Reader
	stderr   io.Reader
}

var _ driver.Process = (*process)(nil)

// connect returns a connection to a command.
func (i *instance) connect(c *command, joined bool) *process {
	p := &process{command: c, provider: i.provider, joined: joined, stderr: eofReader{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	switch {
	case c.log != nil:
		p.stdout = &logStream{log: c.log, ctx: p.ctx, stream: 1, starter: !joined}
		if c.tty == nil {
			p.stderr = &logStream{log: c.log, ctx: p.ctx, stream: 2, starter: !joined}
		}
	default:
		p.stdout = pipeReader{c.out[0]}
		if c.tty == nil {
			p.stderr = pipeReader{c.out[1]}
		}
	}
	return p
}

func (p *process) Info() sandbox.ProcessInfo { return p.describe() }
func (p *process) Stdin() io.WriteCloser     { return p.stdin }
func (p *process) Stdout() io.Reader         { return p.stdout }
func (p *process) Stderr() io.Reader         { return p.stderr }

// Signal signals the command's process group.
func (p *process) Signal(ctx context.Context, sig int) error {
	if err := p.provider.begin(ctx, "process.signal"); err != nil {
		return err
	}
	return p.signal("process.signal", sig)
}

// Resize sets the terminal's size.
func (p *process) Resize(ctx context.Context, size sandbox.WindowSize) error {
	if err := p.provider.begin(ctx, "process.resize"); err != nil {
		return err
	}
	if p.tty == nil {
		return fail(sandbox.CodeInvalid, "process.resize", p.info.ID, "the command has no terminal")
	}
	p.tty.Resize(size.Cols, size.Rows)
	return nil
}

// Wait blocks until the command has ended.
func (p *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	if err := p.provider.begin(ctx, "process.wait"); err != nil {
		return sandbox.Exit{}, err
	}
	select {
	case <-p.done:
		return *p.describe().Exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close lets go of the command.
func (p *process) Close() error {
	p.cancel()
	if p.log != nil && !p.joined {
		p.log.release()
	}
	if p.log != nil || p.joined {
		return nil
	}
	if !p.ended() {
		p.kernel.KillSession(p.proc.PID)
	}
	_ = closeStdin(p.stdin) // The command is dead; nobody reads it.
	for _, f := range p.out {
		if f != nil {
			go discard(f) // What it left behind may go on writing.
		}
	}
	<-p.done
	return nil
}

// discard reads a stream to its end.
func discard(f kernel.File) {
	defer f.Close()
	buf := make([]byte, 4096)
	for {
		if _, err := f.Read(context.Background(), buf); err != nil {
			return
		}
	}
}

// closeStdin closes a pipe; a terminal was hung up already.
func closeStdin(w io.WriteCloser) error {
	if s, ok := w.(*stdin); ok {
		return s.Close()
	}
	return nil
}

// stdin is the writing end of a command's input.
type stdin struct{ w kernel.File }

func (s *stdin) Write(b []byte) (int, error) {
	n, err := s.w.Write(context.Background(), b)
	if err != nil {
		err = fail(sandbox.CodeNotFound, "process.stdin", "", "nobody reads the input any more")
	}
	return n, err
}

func (s *stdin) Close() error {
	s.w.Close()
	return nil
}

// closedStdin is the input of a command that has none.
type closedStdin struct{}

func (closedStdin) Write([]byte) (int, error) {
	return 0, fail(sandbox.CodeInvalid, "process.stdin", "", "the command was started without input")
}
func (closedStdin) Close() error { return nil }

// typist types on a command's terminal.
type typist struct {
	tty  *kernel.TTY
	life context.Context

	mu     sync.Mutex
	closed bool
}

func (t *typist) Write(b []byte) (int, error) {
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return 0, fail(sandbox.CodeInvalid, "process.stdin", "", "the input is closed")
	}
	n, err := t.tty.Input(t.life, b)
	if err != nil {
		err = fail(sandbox.CodeNotFound, "process.stdin", "", "the terminal is gone")
	}
	return n, err
}

// Close types the end-of-file character.
func (t *typist) Close() error {
	t.mu.Lock()
	closed := t.closed
	t.closed = true
	t.mu.Unlock()
	if !closed {
		_, _ = t.tty.Input(t.life, []byte{4}) // A terminal that is gone has ended already.
	}
	return nil
}

// pipeReader reads a foreground command's output.
type pipeReader struct{ f kernel.File }

func (r pipeReader) Read(b []byte) (int, error) {
	n, err := r.f.Read(context.Background(), b)
	if err == syscall.EBADF {
		err = io.EOF
	}
	return n, err
}

type eofReader struct{}

func (eofReader) Read([]byte) (int, error) { return 0, io.EOF }
