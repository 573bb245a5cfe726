package server

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"github.com/atoll-run/atoll/sandbox"
)

// MaxConnections is how many connections a listener that others can reach has
// at a time.
const MaxConnections = 4096

// MaxPerKey is how many requests with one key, or for the ports of one host
// name, may run at a time, streams included: none can take all connections.
const MaxPerKey = MaxConnections / 4

// shares counts the requests that run, by their key. It may be used
// concurrently.
type shares struct {
	limit int

	mu   sync.Mutex
	held map[string]int
}

// enter counts a request until leave is called, and reports whether it may run.
// One without a key is the machine owner's, and is not counted.
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

// Limit returns a listener that closes what comes while it has as many
// connections as it may: who holds connections and says nothing costs a bounded
// amount of memory, and who waits long enough is let in when those time out.
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

// counted is a connection that gives its place back when it is closed.
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
