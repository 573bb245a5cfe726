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

// closeTime limits the time for closing.
const closeTime = time.Second

// Tunnel is a byte stream over a WebSocket, with half-close: a binary message
// contains bytes, and an empty message closes its direction. An unread stream
// blocks its writer, through the flow control of the underlying connection.
//
// It is a net.Conn with one difference: an exceeded deadline closes it.
type Tunnel struct {
	ws   Socket
	name string

	in, out lane

	reading sync.Mutex
	message io.Reader // partially read
	bytes   int       // bytes read of it
	ended   bool      // the peer has closed its direction

	writing sync.Mutex
	silent  bool // this side has closed its direction
	once    sync.Once
}

// lane is one direction: the context of its operations, and its deadline.
type lane struct {
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex
	timer  *time.Timer
	late   atomic.Bool
}

var _ net.Conn = (*Tunnel)(nil)

// Socket is a WebSocket, or one that limits what passes.
type Socket interface {
	Reader(ctx context.Context) (websocket.MessageType, io.Reader, error)
	Write(ctx context.Context, kind websocket.MessageType, b []byte) error
	SetReadLimit(n int64)
	CloseNow() error
}

// NewTunnel returns a Tunnel over ws, and takes ownership of it. name is its
// remote address. The caller closes it.
func NewTunnel(ws Socket, name string) *Tunnel {
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

// CloseWrite closes the sending direction.
func (t *Tunnel) CloseWrite() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.silent {
		return nil
	}
	t.silent = true
	return t.out.explain(t.ws.Write(t.out.ctx, websocket.MessageBinary, nil))
}

// Close closes the tunnel normally: written data is delivered.
func (t *Tunnel) Close() error {
	t.once.Do(func() {
		// Do not let a blocked writer delay this.
		_ = t.SetWriteDeadline(time.Now().Add(closeTime))
		_ = t.CloseWrite()
		t.drop()
	})
	return nil
}

// Abort closes the tunnel in a way that the peer detects as abnormal.
func (t *Tunnel) Abort() { t.once.Do(t.drop) }

func (t *Tunnel) drop() {
	_ = t.SetDeadline(time.Time{})
	t.in.cancel()
	t.out.cancel()
	_ = t.ws.CloseNow()
}

// LocalAddr implements net.Conn.
func (t *Tunnel) LocalAddr() net.Addr { return tunnelAddr("tunnel") }

// RemoteAddr returns the name of the tunnel.
func (t *Tunnel) RemoteAddr() net.Addr { return tunnelAddr(t.name) }

type tunnelAddr string

func (tunnelAddr) Network() string  { return "tunnel" }
func (a tunnelAddr) String() string { return string(a) }

// SetDeadline sets both deadlines.
func (t *Tunnel) SetDeadline(at time.Time) error {
	_ = t.SetReadDeadline(at)
	return t.SetWriteDeadline(at)
}

// SetReadDeadline closes the tunnel if a Read blocks beyond it.
func (t *Tunnel) SetReadDeadline(at time.Time) error {
	t.in.until(at)
	return nil
}

// SetWriteDeadline closes the tunnel if a Write blocks beyond it.
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
		return io.ErrUnexpectedEOF // only an empty message is a normal end
	}
	return err
}

// Duplex is a connection that supports half-close.
type Duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// AsDuplex returns conn as a Duplex. If conn does not support half-close,
// CloseWrite does nothing.
func AsDuplex(conn net.Conn) Duplex {
	if d, ok := conn.(Duplex); ok {
		return d
	}
	return whole{conn}
}

type whole struct{ net.Conn }

func (whole) CloseWrite() error { return nil }

// Join copies between two connections until both directions have ended or ctx
// has, and closes both. A half-close is passed on. If one connection breaks,
// the other is aborted.
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
			_ = to.CloseWrite() // if this fails, the other direction ends, too
		})
	}
	carry(a, b)
	carry(b, a)
	both.Wait()
	_, _ = a.Close(), b.Close()
}

// breakOff aborts connections, so that the peers detect an abnormal end if
// possible.
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
