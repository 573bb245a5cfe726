package guest

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// Dial connects to a TCP port on the sandbox's loopback interface. See
// driver.Dialer.
func (c *Client) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	subject := strconv.Itoa(int(port))
	var e wire.Encoder
	e.Uint(uint64(port))
	op, err := c.open(ctx, wire.Dial, e.B)
	if err != nil {
		return nil, c.failed("dial", subject, err)
	}
	if _, err := message(ctx, op, wire.MsgReady); err != nil {
		return nil, c.failed("dial", subject, err)
	}
	return &portConn{client: c, op: op, port: portAddr(port)}, nil
}

// portConn is a connection to a port in the sandbox: lane 0 of an operation, in
// both directions. An unread stream blocks its writer, as on any connection.
type portConn struct {
	client *Client
	op     *wire.Op
	port   portAddr
	close  sync.Once
}

var _ interface {
	net.Conn
	io.WriterTo
	CloseWrite() error
} = (*portConn)(nil)

func (c *portConn) Read(p []byte) (int, error) {
	n, err := c.op.In(0).Read(p)
	return n, c.failed("read", err)
}

// WriteTo saves io.Copy a buffer.
func (c *portConn) WriteTo(w io.Writer) (int64, error) {
	sink := &sinkErr{w: w}
	n, err := c.op.In(0).WriteTo(sink)
	if sink.err != nil {
		return n, sink.err
	}
	return n, c.failed("read", err)
}

func (c *portConn) Write(p []byte) (int, error) {
	n, err := c.op.Write(0, p)
	return n, c.failed("write", err)
}

// failed preserves the errors that callers of a net.Conn compare with.
func (c *portConn) failed(what string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if isTimeout(err) {
		return &net.OpError{Op: what, Net: "tcp", Addr: c.port, Err: err}
	}
	if isOver(c.op) {
		if _, over := c.op.Result(); over != nil {
			err = over // more specific than a closed stream
		}
	}
	return &net.OpError{Op: what, Net: "tcp", Addr: c.port, Err: c.client.failed("port", strconv.Itoa(int(c.port)), err)}
}

func isOver(op *wire.Op) bool {
	select {
	case <-op.Over():
		return true
	default:
		return false
	}
}

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// CloseWrite closes the writing side. Reading still works.
func (c *portConn) CloseWrite() error {
	c.op.StopWriting(0, io.ErrClosedPipe)
	if isOver(c.op) {
		return nil
	}
	return c.failed("close", c.op.CloseWrite(0))
}

// Close closes the connection. Data written before is still delivered.
func (c *portConn) Close() error {
	c.close.Do(func() {
		_ = c.SetDeadline(time.Time{})
		c.op.Abandon()
	})
	return nil
}

func (c *portConn) LocalAddr() net.Addr  { return portAddr(0) }
func (c *portConn) RemoteAddr() net.Addr { return c.port }

func (c *portConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *portConn) SetReadDeadline(t time.Time) error {
	c.op.SetReadDeadline(0, t)
	return nil
}

func (c *portConn) SetWriteDeadline(t time.Time) error {
	c.op.SetWriteDeadline(0, t)
	return nil
}

// portAddr is a port inside the sandbox.
type portAddr uint16

func (portAddr) Network() string  { return "tcp" }
func (a portAddr) String() string { return "localhost:" + strconv.Itoa(int(a)) }
