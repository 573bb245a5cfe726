package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

type peerKey struct{}

// withPeer stores the peer credentials of a Unix socket in the context.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	uid, err := peerUID(c)
	if err != nil {
		return ctx // not a Unix socket, or its peer is not known
	}
	return context.WithValue(ctx, peerKey{}, &uid)
}

// peerOf returns the user at the other end of a Unix socket, nil for any other
// connection.
func peerOf(ctx context.Context) *uint32 {
	uid, _ := ctx.Value(peerKey{}).(*uint32)
	return uid
}

func peerUID(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return cred.Uid, nil
}

// makingSocket is the prefix of the temporary directories in which sockets are
// created.
const makingSocket = ".s"

// Sweep removes temporary directories of ListenUnix in a directory, if the
// process was killed in the middle. It must not run concurrently with
// ListenUnix.
func Sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, makingSocket+"[0-9]*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// maxSocketPath is the longest path that a Unix socket can have.
const maxSocketPath = 107

// ListenUnix listens on a socket with mode 0600 and replaces an old socket at
// the path. The caller must make sure that no process listens there. Closing
// the listener removes the socket.
func ListenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "daemon.listen", Subject: path, Message: "the path is too long for a socket",
			Hint: "choose a shorter state directory",
		}
	}
	// Create it in a private directory, so that other users never see it with
	// another mode.
	dir, err := os.MkdirTemp(filepath.Dir(path), makingSocket)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	if len(made) > maxSocketPath {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "daemon.listen", Subject: path, Message: "the path is too long for a socket"}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(made, 0o600); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &unixListener{UnixListener: l, path: path}, nil
}

type unixListener struct {
	*net.UnixListener
	path string
	once sync.Once
}

func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	l.once.Do(func() { _ = os.Remove(l.path) })
	return err
}

// Memory is a listener without an address. Its connections are socket pairs, so
// they have peer credentials like other Unix sockets.
type Memory struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewMemory returns a listener, which the caller closes.
func NewMemory() *Memory {
	return &Memory{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept waits for a connection.
func (m *Memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

// Close refuses connections from now on.
func (m *Memory) Close() error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

// Addr names the listener.
func (m *Memory) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// Dial connects.
func (m *Memory) Dial(ctx context.Context) (net.Conn, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	select {
	case m.conns <- far:
		return near, nil
	case <-m.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	_, _ = near.Close(), far.Close()
	return nil, err
}

// Transport is an HTTP transport whose every connection goes to the listener.
func (m *Memory) Transport() *http.Transport {
	return &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return m.Dial(ctx) },
		DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
	}
}

func socketPair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	conns := [2]net.Conn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "memory")
		c, err2 := net.FileConn(f)
		_ = f.Close()
		if err2 != nil && err == nil {
			err = err2
		}
		conns[i] = c
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}
