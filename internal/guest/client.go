// Package guest is the client of the guest, Atoll's process inside a sandbox. A
// provider connects a socket to descriptor 3 of a guest and embeds a [Client],
// which implements commands, files, archives and watching.
//
// The client does not trust the guest. Code in the sandbox can be root there
// and replace the guest, so an answer may be late, wrong, hostile or missing.
// The client limits what it buffers, checks what it receives, and fails with an
// error.
package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// Argv0 is the process name with which this program must be executed to become
// a guest. Descriptor 3 is its connection. See package early.
const Argv0 = wire.Argv0

// Path is where the guest's program must be inside the sandbox when it is
// executed as process 1. The guest unmounts the directory of the program.
const Path = wire.Path

// ConnectArgs returns the arguments of a helper that hands its descriptor 3 to
// the guest as another connection. Root must run it inside the sandbox. It
// exits with status 0 when the guest has taken the connection.
func ConnectArgs() []string { return []string{wire.Argv0, wire.ConnectArg} }

// A guest can also run in a sandbox of another product. Its program must be
// installed at NestedPrefix plus any suffix and be run as root with JoinArg.
// The program's standard output is the connection, and so is its input, in
// frames; see package wire. The first program that joins starts the guest,
// which outlives it.
const (
	NestedPrefix = wire.NestedPrefix
	JoinArg      = wire.JoinArg
	JoinHeader   = wire.JoinHeader
	MaxJoin      = wire.MaxJoin
	JoinSilence  = wire.JoinSilence
	FeedEnv      = wire.FeedEnv
)

// HostArgs returns the arguments of a guest that runs plain processes on this
// machine. Its file operations are confined to the directory root. It exits
// when its connection closes.
func HostArgs(root string) []string { return []string{wire.Argv0, wire.HostArg, root} }

// Env returns the environment that a guest should be started with. It is
// optional and not passed on to commands, but speeds up the start: changing the
// number of threads later would stop all of them, and a preemption signal is
// expensive inside a sandbox. GOMAXPROCS is 4 so that a thread blocked in wait4
// does not delay the others.
func Env() []string { return []string{"GOMAXPROCS=4", "GODEBUG=asyncpreemptoff=1"} }

// Defaults are the settings of commands that do not set their own.
type Defaults = wire.Defaults

// Options configure a client. The zero value is valid.
type Options struct {
	// Ended, if set, returns how the sandbox ended. It is called when the
	// connection is lost while a command runs. If it returns true, the command is
	// reported to have ended in the same way. It may block briefly for the answer.
	Ended func(ctx context.Context) (sandbox.Exit, bool)
	// Lost, if set, returns the error for calls on a lost or closed connection, so
	// that a provider can report the state of the sandbox. If it returns nil, the
	// client uses its own error. It is called often and may block briefly.
	Lost func() error
	// Overdue, if set, is called when a command has not ended a while after its
	// timeout, which the guest should have enforced. It ends process pid and its
	// descendants from outside the guest; pid is the number that the guest
	// reported. It returns later for a paused sandbox and is then called again. An
	// error means that the processes may still run.
	Overdue func(ctx context.Context, pid int) (later bool, err error)
}

// Client is a connection to a guest. Its methods may be called concurrently. It
// implements driver.FileSystem, driver.Archiver, driver.Watcher,
// driver.ProcessManager, driver.Dialer, and the Exec method of driver.Instance.
type Client struct {
	conn *wire.Conn
	opts Options
}

// Dial connects to a guest over conn. It takes ownership of conn even when it
// fails. Closing conn must unblock its Read and Write. The context limits only
// Dial.
func Dial(ctx context.Context, conn io.ReadWriteCloser, opts Options) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	var peer wire.Peer
	err := wire.WritePreface(conn)
	if err == nil {
		peer, err = wire.ReadPreface(conn)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, classify("guest.dial", "", err)
	}
	return &Client{conn: wire.NewClient(conn, peer), opts: opts}, nil
}

// Socketpair creates a connection to a guest on this machine: one end for Dial,
// and one to become descriptor 3 of the guest. The caller closes the second
// after the guest has started.
func Socketpair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		// Set the largest buffer that the machine permits, for root or for anyone.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, wire.SocketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, wire.SocketBuffer)
		}
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "guest"), os.NewFile(uintptr(fds[1]), "guest")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// Close closes the connection and ends all commands that do not run in the
// background. It is idempotent.
func (c *Client) Close() error { return c.conn.Close() }

// Done is closed when the connection is lost or closed.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Ping returns when the guest answers, with any result, or when ctx ends.
func (c *Client) Ping(ctx context.Context) {
	_ = c.Kill(ctx, "", 1) // there is no such command
}

// Configure sets the defaults of commands, creates the working directory, and
// sets the host name. It may be called again.
func (c *Client) Configure(ctx context.Context, def Defaults) error {
	var e wire.Encoder
	def.Encode(&e)
	_, err := c.call(ctx, wire.Configure, e.B)
	return c.failed("guest.configure", "", err)
}

// ShowLimits makes programs see the limits of the sandbox after a change.
// Configure does the same.
func (c *Client) ShowLimits(ctx context.Context) error {
	_, err := c.call(ctx, wire.ShowLimits, nil)
	return c.failed("guest.limits", "", err)
}

// Sync makes the kernel write all files to the disk, and waits for that.
func (c *Client) Sync(ctx context.Context) error {
	_, err := c.call(ctx, wire.Sync, nil)
	return c.failed("guest.sync", "", err)
}

// Prewarm makes the guest run a program, given as an executable file, and waits
// for its end. The sandbox's first command is then faster. Processes does not
// list the program.
func (c *Client) Prewarm(ctx context.Context, program []byte) error {
	_, err := c.call(ctx, wire.Prewarm, program)
	return c.failed("guest.prewarm", "", err)
}

// call performs an operation without streams.
func (c *Client) call(ctx context.Context, m wire.Method, request []byte) ([]byte, error) {
	op, err := c.open(ctx, m, request)
	if err != nil {
		return nil, err
	}
	return await(ctx, op)
}

func (c *Client) open(ctx context.Context, m wire.Method, request []byte) (*wire.Op, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(request) >= wire.MaxOpen {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Message: "the request is too large"}
	}
	return c.conn.Open(ctx, m, request)
}

// answer starts the trace span of a round trip to the guest.
func answer(ctx context.Context) (context.Context, func(error)) {
	return span.Start(ctx, "guest", "answer", "")
}

// await waits for the result of an operation.
func await(ctx context.Context, op *wire.Op) (_ []byte, err error) {
	ctx, end := answer(ctx)
	defer func() { end(err) }()
	select {
	case <-op.Over():
		return op.Result()
	case <-ctx.Done():
		op.Abandon()
		return nil, ctx.Err()
	}
}

// message waits for the next message of an operation, which must be of the
// given kind, and returns its payload.
func message(ctx context.Context, op *wire.Op, kind byte) (_ []byte, err error) {
	ctx, end := answer(ctx)
	defer func() { end(err) }()
	var b []byte
	select {
	case b = <-op.Messages():
	case <-ctx.Done():
		op.Abandon()
		return nil, ctx.Err()
	case <-op.Over():
		select {
		case b = <-op.Messages():
		default:
			if _, err := op.Result(); err != nil {
				return nil, err
			}
			return nil, errNonsense
		}
	}
	if len(b) == 0 || b[0] != kind {
		op.Abandon()
		return nil, errNonsense
	}
	return b[1:], nil
}

var errNonsense = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the guest sent an invalid answer"}

// failed converts err to the error for the caller. If the connection is lost,
// it asks Options.Lost first.
func (c *Client) failed(op, subject string, err error) error {
	if err == nil {
		return nil
	}
	var refused *wire.RemoteError
	if c.conn.Err() != nil && c.opts.Lost != nil && !errors.As(err, &refused) && !isContext(err) {
		if lost := c.opts.Lost(); lost != nil {
			return lost
		}
	}
	return classify(op, subject, err)
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// classify converts any error except that of a context to an *sandbox.Error.
func classify(op, subject string, err error) error {
	if isContext(err) {
		return err
	}
	e := &sandbox.Error{Op: op, Subject: subject, Cause: err}
	var theirs *wire.RemoteError
	var ours *sandbox.Error
	var version *wire.VersionError
	switch {
	case errors.As(err, &ours):
		e.Code, e.Message, e.Hint = ours.Code, ours.Message, ours.Hint
	case errors.As(err, &theirs):
		e.Code, e.Message = theirs.Code, theirs.Message
		if theirs.Subject != "" {
			e.Subject = theirs.Subject
		}
	case errors.As(err, &version):
		e.Code, e.Message = sandbox.CodeUnsupported, version.Error()
		e.Hint = "make a new sandbox, or use the atoll that made this one"
	case errors.Is(err, wire.ErrProtocol):
		e.Code, e.Message = sandbox.CodeUnavailable, "the guest sent an invalid answer"
	case errors.Is(err, wire.ErrClosed):
		e.Code, e.Message = sandbox.CodeUnavailable, "the connection to the guest was closed"
	case errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrClosed):
		e.Code, e.Message = sandbox.CodeCanceled, "closed"
	default:
		e.Code, e.Message = sandbox.CodeUnavailable, "the connection to the guest was lost"
	}
	return e
}

// ErrorCode returns the code of an error of this package, or "" for others.
func ErrorCode(err error) sandbox.Code {
	var e *sandbox.Error
	switch {
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.DeadlineExceeded):
		return sandbox.CodeTimeout
	case errors.Is(err, context.Canceled):
		return sandbox.CodeCanceled
	}
	return ""
}
