package server

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"github.com/atoll-run/atoll/sandbox"
)

// MaxConnections is the maximum number of open connections of a TCP listener.
const MaxConnections = 4096

// MaxPerKey is the maximum number of running requests with one key, or for the
// ports of one host name, including streams. So no caller can use up all
// connections.
const MaxPerKey = MaxConnections / 4

// shares counts the running requests by key. It may be used concurrently.
type shares struct {
	limit int

	mu   sync.Mutex
	held map[string]int
}

// enter counts a request until leave is called, and reports whether it may run.
// Requests without a key come from the owner of the machine and are not
// counted.
func (s *shares) enter(token string) (leave func(), ok bool) {
	if token == "" {
		return func() {}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[token] >= s.limit {
		return nil, false
	}
	s.held[token]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[token]--; s.held[token] == 0 {
			delete(s.held, token)
		}
	}, true
}

func tooManyRequests() error {
	return &sandbox.Error{
		Code: sandbox.CodeExhausted, Message: "too many requests with this key, or for this port, run at the same time",
		Hint: "close streams that are not needed, and try again",
	}
}

// Limit returns a listener that closes new connections while it has the maximum
// number of open ones. So idle connections use a bounded amount of memory.
// Clients can connect again when idle connections time out.
func Limit(l net.Listener, connections int) net.Listener {
	return &limited{Listener: l, room: make(chan struct{}, connections)}
}

type limited struct {
	net.Listener
	room chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.room <- struct{}{}:
			return &counted{Conn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
		default:
			_ = c.Close()
		}
	}
}

// counted is a connection that decrements the count when it is closed.
type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn.
func (c *counted) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
