package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// handshakeRecord is the first byte of a TLS connection. No HTTP request
	// begins with it.
	handshakeRecord = 0x16
	// firstByte is how long a client may take to send the first byte.
	firstByte = 10 * time.Second
)

// eitherListener accepts clients with and without TLS on the same address.
type eitherListener struct {
	net.Listener
	config *tls.Config
	sorted chan net.Conn
	failed chan error
	life   context.Context // canceled by Close
	stop   context.CancelFunc
	work   sync.WaitGroup
}

// newEitherListener takes ownership of a listener whose connections are
// syscall.Conns.
func newEitherListener(l net.Listener, config *tls.Config) *eitherListener {
	e := &eitherListener{Listener: l, config: config, sorted: make(chan net.Conn), failed: make(chan error)}
	e.life, e.stop = context.WithCancel(context.Background())
	e.work.Go(e.accept)
	return e
}

func (e *eitherListener) accept() {
	for {
		c, err := e.Listener.Accept()
		if err == nil {
			e.work.Go(func() { e.sort(c) })
			continue
		}
		select {
		case e.failed <- err:
		case <-e.life.Done():
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// sort peeks at the first byte of a connection.
func (e *eitherListener) sort(c net.Conn) {
	stop := context.AfterFunc(e.life, func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(firstByte))
	first, err := peek(c)
	_ = c.SetReadDeadline(time.Time{})
	if !stop() || err != nil {
		_ = c.Close()
		return
	}
	if first == handshakeRecord {
		c = tls.Server(c, e.config)
	}
	select {
	case e.sorted <- c:
	case <-e.life.Done():
		_ = c.Close()
	}
}

// peek returns the first byte from a client without consuming it.
func peek(c net.Conn) (byte, error) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var perr error
	one := make([]byte, 1)
	err = raw.Read(func(fd uintptr) bool {
		n, _, perr = unix.Recvfrom(int(fd), one, unix.MSG_PEEK)
		return perr != unix.EAGAIN && perr != unix.EINTR
	})
	if err = errors.Join(err, perr); err == nil && n == 0 {
		err = net.ErrClosed // the client closed the connection
	}
	return one[0], err
}

// Accept implements net.Listener.
func (e *eitherListener) Accept() (net.Conn, error) {
	select {
	case c := <-e.sorted:
		return c, nil
	case err := <-e.failed:
		return nil, err
	case <-e.life.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (e *eitherListener) Close() error {
	e.stop()
	err := e.Listener.Close()
	e.work.Wait()
	return err
}
