package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// closeTime bounds how long the end of a stream may take to be said.
const closeTime = time.Second

// Tunnel is a byte stream over a WebSocket, with half-close: a binary message
// is some of the bytes, and an empty one says that no more come this way. An
// unread stream blocks its writer, by the flow control of the underlying
// connection.
//
// It is a net.Conn with one difference: a deadline that passes ends it.
type Tunnel struct {
	ws   *websocket.Conn
	name string

	in, out lane

	reading sync.Mutex
	message io.Reader // of which some is not read yet
	bytes   int       // read of it
	ended   bool      // the other side has said all

	writing sync.Mutex
	silent  bool // this side has said all
	once    sync.Once
}

// lane is one direction: the context of its operations and what its deadline
// does to it.
type lane struct {
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex
	timer  *time.Timer
	late   atomic.Bool
}

var _ net.Conn = (*Tunnel)(nil)

// NewTunnel returns a Tunnel over ws, which belongs to it from here on. name is
// what its RemoteAddr says. The caller closes it.
func NewTunnel(ws *websocket.Conn, name string) *Tunnel {
	ws.SetReadLimit(maxTunnelMessage)
	t := &Tunnel{ws: ws, name: name}
	for _, l := range []*lane{&t.in, &t.out} {
		l.ctx, l.cancel = context.WithCancel(context.Background())
	}
	return t
}

const maxTunnelMessage = 64 << 10

func (t *Tunnel) Read(p []byte) (int, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for !t.ended {
		if t.message == nil {
			kind, r, err := t.ws.Reader(t.in.ctx)
			if err != nil {
				return 0, t.in.explain(err)
			}
			if kind != websocket.MessageBinary {
				t.Abort()
				return 0, errors.New("the other side of the tunnel uses another protocol")
			}
			t.message, t.bytes = r, 0
		}
		n, err := t.message.Read(p)
		t.bytes += n
		if err == io.EOF {
			t.message, t.ended, err = nil, t.bytes == 0, nil
		}
		if err != nil {
			return n, t.in.explain(err)
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, io.EOF
}

func (t *Tunnel) Write(p []byte) (int, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	sent := 0
	for sent < len(p) {
		if t.silent {
			return sent, net.ErrClosed
		}
		part := p[sent:min(len(p), sent+maxData)]
		if err := t.ws.Write(t.out.ctx, websocket.MessageBinary, part); err != nil {
			return sent, t.out.explain(err)
		}
		sent += len(part)
	}
	return sent, nil
}

// CloseWrite says that no more comes from this side. Reading goes on.
func (t *Tunnel) CloseWrite() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.silent {
		return nil
	}
	t.silent = true
	return t.out.explain(t.ws.Write(t.out.ctx, websocket.MessageBinary, nil))
}

// Close ends the tunnel in good order: what was written before gets there.
func (t *Tunnel) Close() error {
	t.once.Do(func() {
		// A writer that is stuck must not keep this from ending.
		_ = t.SetWriteDeadline(time.Now().Add(closeTime))
		_ = t.CloseWrite()
		t.drop()
	})
	return nil
}

// Abort ends the tunnel so that the other side does not take it for an end in
// good order.
func (t *Tunnel) Abort() { t.once.Do(t.drop) }

func (t *Tunnel) drop() {
	_ = t.SetDeadline(time.Time{})
	t.in.cancel()
	t.out.cancel()
	_ = t.ws.CloseNow()
}

// LocalAddr names the tunnel.
func (t *Tunnel) LocalAddr() net.Addr { return tunnelAddr("tunnel") }

// RemoteAddr names what it leads to.
func (t *Tunnel) RemoteAddr() net.Addr { return tunnelAddr(t.name) }

type tunnelAddr string

func (tunnelAddr) Network() string  { return "tunnel" }
func (a tunnelAddr) String() string { return string(a) }

// SetDeadline sets both deadlines.
func (t *Tunnel) SetDeadline(at time.Time) error {
	_ = t.SetReadDeadline(at)
	return t.SetWriteDeadline(at)
}

// SetReadDeadline ends the tunnel if a Read waits longer.
func (t *Tunnel) SetReadDeadline(at time.Time) error {
	t.in.until(at)
	return nil
}

// SetWriteDeadline ends the tunnel if a Write waits longer.
func (t *Tunnel) SetWriteDeadline(at time.Time) error {
	t.out.until(at)
	return nil
}

func (l *lane) until(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if !at.IsZero() {
		l.timer = time.AfterFunc(time.Until(at), func() {
			l.late.Store(true)
			l.cancel()
		})
	}
}

func (l *lane) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case l.late.Load():
		return os.ErrDeadlineExceeded
	case l.ctx.Err() != nil:
		return net.ErrClosed
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF // only an empty message is an end
	}
	return err
}

// Duplex is a connection of which either direction can end first.
type Duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// AsDuplex returns conn as one. Where only the whole of it can be closed, an
// end of one direction is not passed on.
func AsDuplex(conn net.Conn) Duplex {
	if d, ok := conn.(Duplex); ok {
		return d
	}
	return whole{conn}
}

type whole struct{ net.Conn }

func (whole) CloseWrite() error { return nil }

// Join carries bytes between two connections until both directions have ended
// or ctx has, and closes both. An end of one direction is passed on as that; a
// connection that breaks breaks the other.
func Join(ctx context.Context, a, b Duplex) {
	stop := context.AfterFunc(ctx, func() { breakOff(a, b) })
	defer stop()
	var both sync.WaitGroup
	carry := func(to, from Duplex) {
		both.Go(func() {
			if _, err := io.Copy(to, from); err != nil {
				breakOff(a, b)
				return
			}
			_ = to.CloseWrite() // if that fails, the other direction ends too
		})
	}
	carry(a, b)
	carry(b, a)
	both.Wait()
	_, _ = a.Close(), b.Close()
}

// breakOff closes connections so that nobody takes it for a good end, as far
// as they can do that.
func breakOff(conns ...Duplex) {
	for _, c := range conns {
		switch c := c.(type) {
		case interface{ Abort() }:
			c.Abort()
			continue
		case *net.TCPConn:
			_ = c.SetLinger(0)
		}
		_ = c.Close()
	}
}
