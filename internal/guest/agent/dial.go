package agent

import (
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// lingerTime limits how long data of a disconnected client waits for a program
// that does not read it.
const lingerTime = 10 * time.Second

// dial connects to a port as a program in the sandbox would, and copies bytes
// until both directions have ended. The directions end independently: a client
// that has closed its side still receives the answer.
func (a *agent) dial(op *wire.Op, d *wire.Decoder) error {
	port := d.Uint()
	if err := d.End(); err != nil {
		return err
	}
	if port < 1 || port > 65535 {
		return fail(sandbox.CodeInvalid, "", "a port is a number from 1 to 65535")
	}
	conn, err := dialLoopback(int(port), op.Over())
	if err != nil {
		return portError(int(port), err)
	}
	defer conn.Close()
	if err := op.Message([]byte{wire.MsgReady}); err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-op.Over(): // the client went away
			_ = conn.SetReadDeadline(time.Unix(1, 0))
			_ = conn.SetWriteDeadline(time.Now().Add(lingerTime))
		case <-done:
		}
	}()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		if _, err := op.In(0).WriteTo(conn); err == nil {
			shutdownWrite(conn)
		}
	}()
	err = pump(conn, func(frame []byte) error { return op.SendFrame(0, frame) })
	switch {
	case err == nil:
		_ = op.CloseWrite(0)
	case isOver(op): // data that the client sent before is still delivered
	default:
		op.Drop(0, io.ErrClosedPipe) // the program no longer reads
		err = fail(sandbox.CodeUnavailable, strconv.Itoa(int(port)), "the connection was lost: "+err.Error())
	}
	<-fed
	return err
}

func isOver(op *wire.Op) bool {
	select {
	case <-op.Over():
		return true
	default:
		return false
	}
}

func portError(port int, err error) error {
	code, known := codes[errnoOf(err)]
	if !known || code != sandbox.CodeExhausted {
		code = sandbox.CodeUnavailable
	}
	msg := "connecting inside the sandbox: " + err.Error()
	if errnoOf(err) == unix.ECONNREFUSED {
		msg = "nothing listens on this port inside the sandbox"
	}
	return fail(code, strconv.Itoa(port), msg)
}

// dialLoopback tries the IPv4 and then the IPv6 loopback address, as programs
// do for localhost. It stops when over is closed.
func dialLoopback(port int, over <-chan struct{}) (*os.File, error) {
	conn, err := dialAddress(unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}, over)
	if errnoOf(err) != unix.ECONNREFUSED {
		return conn, err
	}
	if conn, err6 := dialAddress(unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}, over); err6 == nil {
		return conn, nil
	}
	return nil, err
}

func dialAddress(family int, to unix.Sockaddr, over <-chan struct{}) (*os.File, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	err = unix.Connect(fd, to)
	if err != nil && err != unix.EINPROGRESS && err != unix.EINTR {
		unix.Close(fd)
		return nil, err
	}
	conn := os.NewFile(uintptr(fd), "port")
	if err == nil {
		return conn, nil
	}
	if err := awaitConnect(conn, over); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// awaitConnect waits until a connection is established or refused.
func awaitConnect(conn *os.File, over <-chan struct{}) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	made := make(chan struct{})
	defer close(made)
	go func() {
		select {
		case <-over:
			_ = conn.SetWriteDeadline(time.Unix(1, 0))
		case <-made:
		}
	}()
	var refused error
	err = raw.Write(func(fd uintptr) bool {
		errno, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			refused = err
		case errno != 0:
			refused = unix.Errno(errno)
		default:
			_, err := unix.Getpeername(int(fd))
			return err == nil
		}
		return true
	})
	if refused != nil {
		return refused
	}
	return err
}

func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	errors.As(err, &errno)
	return errno
}

func shutdownWrite(conn *os.File) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}
