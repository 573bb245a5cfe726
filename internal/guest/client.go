// Package guest talks to Atoll's process inside a sandbox. A provider connects
// a socket to descriptor 3 of a guest, embeds a [Client], and has commands,
// files, archives and watching from it.
//
// Nothing that the guest says is trusted. Code in the sandbox can be root there
// and replace the guest, so that an answer may be late, wrong, hostile or
// missing: the client bounds what it holds, classifies what it gets, and gives
// up with an error.
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

// Argv0 is the name under which this program must be executed to be a guest.
// Descriptor 3 is its connection. See package early.
const Argv0 = wire.Argv0

// Path is where, inside, the program of a guest that is process 1 must be when
// it is executed. The guest unmounts the directory that it is in.
const Path = wire.Path

// ConnectArgs are the arguments of a program run by root inside the sandbox
// that hands its descriptor 3 to the guest, which then serves it as another
// connection. The program ends with 0 when the guest has it.
func ConnectArgs() []string { return []string{wire.Argv0, wire.ConnectArg} }

// A guest can also run in a sandbox that somebody else's software keeps: as a
// program whose path is NestedPrefix and anything, with JoinArg, run by root. Its
// standard output is the connection, and so is its input, in frames; see package
// wire. The first that joins starts the guest, which outlives it.
const (
	NestedPrefix = wire.NestedPrefix
	JoinArg      = wire.JoinArg
	JoinHeader   = wire.JoinHeader
	MaxJoin      = wire.MaxJoin
	JoinSilence  = wire.JoinSilence
	FeedEnv      = wire.FeedEnv
)

// HostArgs are the arguments of a guest that runs plain processes on this
// machine, with file operations confined to the directory root. It ends with
// its connection.
func HostArgs(root string) []string { return []string{wire.Argv0, wire.HostArg, root} }

// Env returns the environment that a guest should be started with. It does not
// need it, and passes none of it on to commands, but starts faster: setting
// later how many threads run would stop all of them, and a signal to preempt
// one costs much inside a sandbox. Four processors, so that a thread blocked in
// wait4 holds up nobody.
func Env() []string { return []string{"GOMAXPROCS=4", "GODEBUG=asyncpreemptoff=1"} }

// Defaults are what commands of a sandbox get that do not say otherwise.
type Defaults = wire.Defaults

// Options tune a client; the zero value is fine.
type Options struct {
	// Ended, if set, is asked how the sandbox itself ended when the
	// connection is lost while a command runs. If it returns true, that is
	// how the command ended, too. It should wait a little for the answer.
	Ended func(ctx context.Context) (sandbox.Exit, bool)
	// Lost, if set, is asked for the error of calls on a connection that is
	// lost or closed, so that a provider can say what it knows about the
	// sandbox. Returning nil leaves the client's own error. It is called
	// often, and may wait a little.
	Lost func() error
	// Overdue, if set, is called when a command has not ended a while after its
	// timeout, which the guest should have enforced. It ends process pid and what
	// that has started from outside the guest; pid is what the guest said. With
	// later, which is for a sandbox that is paused, it is called again. An error
	// says that the processes may run on.
	Overdue func(ctx context.Context, pid int) (later bool, err error)
}

// Client is a connection to a guest. Its methods may be called concurrently.
// It implements driver.FileSystem, driver.Archiver, driver.Watcher,
// driver.ProcessManager, driver.Dialer, and the Exec of driver.Instance.
type Client struct {
	conn *wire.Conn
	opts Options
}

// Dial begins to speak to a guest over conn, which belongs to the client from
// here on, even when Dial fails. Closing conn must end what waits for it. The
// context bounds only Dial.
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

// Socketpair makes a connection to a guest on this machine: one end for Dial,
// and one to become descriptor 3 of the guest, which the caller closes after
// that.
func Socketpair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		// As much as the machine permits to everybody, or to root.
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

// Close ends the connection. Commands that do not run in the background end
// with it. Close is idempotent.
func (c *Client) Close() error { return c.conn.Close() }

// Done is closed when the connection is lost or closed.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Ping returns when the guest answers, whatever it says, or ctx ends.
func (c *Client) Ping(ctx context.Context) {
	_ = c.Kill(ctx, "", 1) // there is no such command
}

// Configure sets what commands get that do not say otherwise, makes the
// working directory, and sets the host name. It may be called again.
func (c *Client) Configure(ctx context.Context, def Defaults) error {
	var e wire.Encoder
	def.Encode(&e)
	_, err := c.call(ctx, wire.Configure, e.B)
	return c.failed("guest.configure", "", err)
}

// Prewarm has the guest start a program, given as an executable file, and wait
// for its end, so that the first command of the sandbox is not the first thing
// that it starts. The program is none of the commands that Processes lists.
func (c *Client) Prewarm(ctx context.Context, program []byte) error {
	_, err := c.call(ctx, wire.Prewarm, program)
	return c.failed("guest.prewarm", "", err)
}

// call is an operation without streams.
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

// answer is the span of a round trip to the guest, whose answer is waited for.
func answer(ctx context.Context) (context.Context, func(error)) {
	return span.Start(ctx, "guest", "answer", "")
}

// await waits for the outcome of an operation.
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
// given kind, and returns what follows.
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

var errNonsense = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the guest's answer makes no sense"}

// failed makes of err the error that a caller gets. When the connection is
// gone, the provider may know more about that.
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

// classify makes an *sandbox.Error of everything but the error of a context.
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
		e.Code, e.Message = sandbox.CodeUnavailable, "the guest's answer makes no sense"
	case errors.Is(err, wire.ErrClosed):
		e.Code, e.Message = sandbox.CodeUnavailable, "the connection to the guest was closed"
	case errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrClosed):
		e.Code, e.Message = sandbox.CodeCanceled, "closed"
	default:
		e.Code, e.Message = sandbox.CodeUnavailable, "the connection to the guest was lost"
	}
	return e
}

// ErrorCode classifies an error of this package. It returns "" for others.
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
