package egress

import (
	"io"
	"net"
	"time"

	"github.com/atoll-run/atoll/internal/policy"
)

// guardedConn is the sandbox's side of a connection that only a default allows.
// If the client starts with TLS, the server name must not be a host that rules
// deny. Data from the server passes meanwhile, since in some protocols the
// server speaks first.
type guardedConn struct {
	net.Conn
	f    *flow
	head []byte // bytes read to decide
	seen bool
}

func (c *guardedConn) Read(p []byte) (int, error) {
	if !c.seen {
		if err := c.decide(); err != nil {
			return 0, err
		}
		c.seen = true
	}
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// decide reads enough to see whether this is TLS, and its server name.
func (c *guardedConn) decide() error {
	first := make([]byte, 1)
	if _, err := io.ReadFull(c.Conn, first); err != nil {
		return err
	}
	if c.head = first; first[0] != handshakeRecord {
		return nil
	}
	_ = c.SetReadDeadline(time.Now().Add(helloTimeout))
	h, err := readHello(&replayConn{c.Conn, first})
	d := policy.Decision{Detail: "the TLS hello cannot be understood"}
	if err == nil {
		d = c.f.ruling.Inside(c.f.decidedFlow(), c.f.d, policy.Hello{ServerName: h.name, Encrypted: h.encrypted})
	}
	if !d.Allow {
		c.f.cut(d.Message())
		return net.ErrClosed
	}
	c.head = h.raw
	_ = c.SetReadDeadline(time.Time{})
	return nil
}

// CloseWrite closes the sending direction.
func (c *guardedConn) CloseWrite() error { return closeWrite(c.Conn) }
