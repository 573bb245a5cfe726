package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"time"
)

// maxHello limits the size of a ClientHello in bytes. Post-quantum keys make it
// several kilobytes.
const maxHello = 64 << 10

// handshakeRecord is the first byte of a TLS connection.
const handshakeRecord = 22

// encryptedHello is the number of the ECH extension.
const encryptedHello = 0xfe0d

// hello is a TLS ClientHello.
type hello struct {
	name      string // server name, as sent
	encrypted bool   // the real name may be a different one
	raw       []byte // all bytes read
}

var errHelloRead = errors.New("hello read")

// readHello reads a TLS ClientHello with the parser of crypto/tls, and sends
// nothing.
func readHello(r io.Reader) (hello, error) {
	var h hello
	tap := &tapConn{r: io.LimitReader(r, maxHello)}
	err := tls.Server(tap, &tls.Config{ //nolint:gosec // nothing is ever negotiated with it
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			h.name = info.ServerName
			h.encrypted = slices.Contains(info.Extensions, encryptedHello)
			return nil, errHelloRead
		},
	}).Handshake()
	h.raw = tap.read.Bytes()
	if errors.Is(err, errHelloRead) {
		return h, nil
	}
	if err == nil {
		err = errors.New("no hello")
	}
	return h, err
}

// tapConn records what is read and discards what is written.
type tapConn struct {
	net.Conn // nil: no other method may be called
	r        io.Reader
	read     bytes.Buffer
}

func (c *tapConn) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.read.Write(p[:n])
	return n, err
}

func (c *tapConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *tapConn) Close() error                     { return nil }
func (c *tapConn) SetDeadline(time.Time) error      { return nil }
func (c *tapConn) SetReadDeadline(time.Time) error  { return nil }
func (c *tapConn) SetWriteDeadline(time.Time) error { return nil }

// replayConn is a connection that returns already read bytes first.
type replayConn struct {
	net.Conn
	head []byte
}

func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite closes the sending direction.
func (c *replayConn) CloseWrite() error { return closeWrite(c.Conn) }

// closeWrite closes the sending direction of a connection, or the whole
// connection if that is not possible.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
