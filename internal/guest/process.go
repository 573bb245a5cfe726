package guest

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// Exec implements driver.Instance.
func (c *Client) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if cmd.Hold > 0 {
		if p, err := c.execHeld(ctx, cmd); err == nil || sandbox.CodeOf(err) != sandbox.CodeUnsupported {
			return p, err
		}
		// The guest is of an earlier Atoll without ExecHeld.
	}
	var e wire.Encoder
	wire.PutCommand(&e, cmd)
	p, err := c.start(ctx, wire.Exec, e.B, cmd)
	if err != nil {
		return nil, c.failed("exec", "", err)
	}
	p.describe(cmd)
	return p, nil
}

// describe adds the request's data to the guest's description of a command.
func (p *process) describe(cmd *sandbox.Command) {
	p.info.Args = append([]string(nil), cmd.Args...)
	if cmd.Shell != "" {
		p.info.Args = []string{"/bin/sh", "-c", cmd.Shell}
	}
	p.info.Background, p.info.TTY = cmd.Background, cmd.TTY != nil
}

// Reconnect implements driver.ProcessManager.
func (c *Client) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	var e wire.Encoder
	e.String(id)
	op, err := c.open(ctx, wire.Attach, e.B)
	if err != nil {
		return nil, c.failed("reconnect", id, err)
	}
	p, _, err := c.joined(ctx, op, joining{input: true})
	if err != nil {
		return nil, c.failed("reconnect", id, err)
	}
	p.info.Background = true
	return p, nil
}

// joining says how to connect to a command.
type joining struct {
	input     bool          // the command has an input
	positions bool          // the guest reports where its output begins
	timeout   time.Duration // zero: none, or not known here
}

// joined waits until a command has started and returns a process for it.
func (c *Client) joined(ctx context.Context, op *wire.Op, how joining) (*process, driver.Cursor, error) {
	var at driver.Cursor
	b, err := message(ctx, op, wire.MsgStarted)
	if err != nil {
		return nil, at, err
	}
	d := wire.Decoder{B: b}
	info := wire.TakeProcess(&d)
	if how.positions {
		at = driver.Cursor{Stdin: d.Int(), Stdout: max(0, d.Int()), Stderr: max(0, d.Int())}
	}
	if err := d.End(); err != nil {
		op.Abandon()
		return nil, at, err
	}
	p := &process{client: c, op: op, info: info, ended: make(chan struct{}), closed: make(chan struct{})}
	p.stdin.p = p
	if !how.input {
		p.stdin.closed = true
	}
	p.setTimer(how.timeout)
	if op.Ended() {
		p.watch() // its end has arrived already
	} else {
		go p.watch()
	}
	return p, at, nil
}

// process is a connected command.
type process struct {
	client *Client
	op     *wire.Op
	info   sandbox.ProcessInfo
	stdin  stdin

	ended chan struct{} // closed once exit and err are set
	exit  sandbox.Exit
	err   error

	timer *time.Timer // of the command's timeout; nil: none
	late  atomic.Pointer[overdue]

	held   bool        // the guest keeps it when the connection is lost
	kept   atomic.Bool // it has become a background command
	close  sync.Once
	closed chan struct{}
}

var _ driver.Process = (*process)(nil)

// watch waits for the end of the command.
func (p *process) watch() {
	defer close(p.ended)
	if p.timer != nil {
		defer p.timer.Stop()
	}
	b, err := message(context.Background(), p.op, wire.MsgExit)
	if err == nil {
		d := wire.Decoder{B: b}
		p.exit = p.whyKilled(wire.TakeExit(&d))
		err = d.End()
	}
	p.op.StopWriting(0, io.ErrClosedPipe)
	if err == nil {
		return
	}
	p.exit = sandbox.Exit{Code: -1, Reason: sandbox.ReasonLost}
	if late := p.late.Load(); late != nil && late.over {
		if p.exit, p.err = late.exit, late.err; p.err == nil {
			return
		}
		p.err = p.client.failed("wait", p.info.ID, p.err)
		return
	}
	if lost := p.client.conn.Err(); lost != nil && p.client.opts.Ended != nil {
		if x, ok := p.client.opts.Ended(context.Background()); ok {
			p.exit = x
			return
		}
	}
	if p.wasClosed() && p.client.conn.Err() == nil {
		err = &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the connection to the command was closed"}
	}
	p.err = p.client.failed("wait", p.info.ID, err)
}

// Finished implements driver.Finisher.
func (p *process) Finished() bool {
	select {
	case <-p.ended:
		return p.op.Ended()
	default:
		return false
	}
}

func (p *process) wasClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

func (p *process) Info() sandbox.ProcessInfo {
	info := p.info
	info.Background = info.Background || p.kept.Load()
	info.Args = append([]string(nil), info.Args...)
	select {
	case <-p.ended:
		if p.err == nil {
			x := p.exit
			info.Running, info.Exit = false, &x
		}
	default:
	}
	return info
}

func (p *process) Stdin() io.WriteCloser { return &p.stdin }
func (p *process) Stdout() io.Reader     { return output{p, 0} }
func (p *process) Stderr() io.Reader     { return output{p, 1} }

func (p *process) Signal(ctx context.Context, sig int) error {
	select {
	case <-p.ended:
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "signal", Subject: p.info.ID, Message: "the process has ended"}
	default:
		return p.client.Kill(ctx, p.info.ID, sig)
	}
}

func (p *process) Resize(ctx context.Context, size sandbox.WindowSize) error {
	if !p.info.TTY {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "resize", Subject: p.info.ID, Message: "the process has no terminal"}
	}
	var e wire.Encoder
	e.String(p.info.ID)
	wire.PutSize(&e, size)
	_, err := p.client.call(ctx, wire.Resize, e.B)
	return p.client.failed("resize", p.info.ID, err)
}

func (p *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-p.ended:
		return p.exit, p.err
	default:
	}
	select {
	case <-p.ended:
		return p.exit, p.err
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close closes the connection to the command. The guest kills the command
// unless it is in the background. Waiting callers still get its exit status.
func (p *process) Close() error {
	p.close.Do(func() {
		if !p.kept.Load() && (p.held && !p.replaced() || !p.info.Background && p.runs()) {
			p.letGo()
		}
		p.detach()
	})
	return nil
}

// runs reports whether the end of the command is not known.
func (p *process) runs() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// replaced reports whether the connection ended before the command. Another
// connection may have taken it over and must keep it.
func (p *process) replaced() bool {
	select {
	case <-p.ended:
		return p.err != nil
	default:
		return false
	}
}

// Detach implements driver.Detacher.
func (p *process) Detach() error {
	p.close.Do(p.detach)
	return nil
}

func (p *process) detach() {
	close(p.closed)
	p.op.Cancel()
	p.op.Drop(0, io.ErrClosedPipe)
	p.op.Drop(1, io.ErrClosedPipe)
}

// output is one output stream of a command.
type output struct {
	p    *process
	lane int
}

func (o output) Read(b []byte) (int, error) {
	n, err := o.p.op.In(o.lane).Read(b)
	return n, o.p.streamError(err)
}

// WriteTo saves io.Copy a buffer.
func (o output) WriteTo(w io.Writer) (int64, error) {
	sink := &sinkErr{w: w}
	n, err := o.p.op.In(o.lane).WriteTo(sink)
	if sink.err != nil {
		return n, sink.err
	}
	return n, o.p.streamError(err)
}

// sinkErr separates errors of the caller's writer from the guest's.
type sinkErr struct {
	w   io.Writer
	err error
}

func (s *sinkErr) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	s.err = err
	return n, err
}

func (p *process) streamError(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if late := p.late.Load(); p.client.conn.Err() != nil || late != nil && late.over {
		// If the exit status is known from the end of the sandbox, the output ends as
		// after any other end.
		if <-p.ended; p.err == nil {
			return io.EOF
		}
	}
	return p.client.failed("read", p.info.ID, err)
}

// stdin is a command's input.
type stdin struct {
	p      *process
	mu     sync.Mutex
	closed bool
}

var errInputClosed = &sandbox.Error{Code: sandbox.CodeConflict, Op: "stdin", Message: "the input is closed"}

func (s *stdin) Write(b []byte) (int, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return 0, errInputClosed
	}
	n, err := s.p.op.Write(0, b)
	if errors.Is(err, io.ErrClosedPipe) {
		return n, errInputClosed
	}
	return n, s.p.client.failed("stdin", s.p.info.ID, err)
}

func (s *stdin) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	_ = s.p.op.CloseWrite(0) // if it fails, the command has ended
	return nil
}

// Kill implements driver.ProcessManager.
func (c *Client) Kill(ctx context.Context, id string, sig int) error {
	if sig < 1 || sig > 64 {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "kill", Subject: id, Message: "no such signal"}
	}
	var e wire.Encoder
	e.String(id)
	e.Uint(uint64(sig))
	_, err := c.call(ctx, wire.Kill, e.B)
	return c.failed("kill", id, err)
}
