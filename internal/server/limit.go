package server

import (
	"container/list"
	"context"
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

// Limit returns a listener with a maximum number of open connections. Above it,
// a new connection replaces the one that has had no request of a known caller
// for the longest time. If all have one, the new connection is closed. So
// clients without a key cannot keep others out.
func Limit(l net.Listener, connections int) net.Listener {
	return &limited{Listener: l, limit: connections, idle: list.New()}
}

type limited struct {
	net.Listener
	limit int

	mu   sync.Mutex
	open int
	idle *list.List // connections without such a request, the longest first
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if k := l.admit(c); k != nil {
			return k, nil
		}
		_ = c.Close()
	}
}

// admit counts a connection. It returns nil if there is no room.
func (l *limited) admit(c net.Conn) *counted {
	l.mu.Lock()
	var oldest *counted
	if l.open >= l.limit {
		first := l.idle.Front()
		if first == nil {
			l.mu.Unlock()
			return nil
		}
		oldest = first.Value.(*counted)
		oldest.leave()
	}
	l.open++
	k := &counted{Conn: c, of: l}
	k.waits = l.idle.PushBack(k)
	l.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close()
	}
	return k
}

// counted is a connection that decrements the count when it is closed.
type counted struct {
	net.Conn
	of *limited

	// These are protected by of.mu.
	requests int
	waits    *list.Element // in of.idle, nil while requests run
	gone     bool
}

// leave decrements the count once. The caller holds of.mu.
func (c *counted) leave() {
	if c.gone {
		return
	}
	c.gone = true
	c.of.open--
	if c.waits != nil {
		c.of.idle.Remove(c.waits)
	}
}

// work keeps the connection until done is called.
func (c *counted) work() (done func()) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.requests++
	if c.waits != nil && !c.gone {
		c.of.idle.Remove(c.waits)
	}
	c.waits = nil
	return func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		if c.requests--; c.requests == 0 && !c.gone {
			c.waits = c.of.idle.PushBack(c)
		}
	}
}

type countedKey struct{}

// withCounted stores the connection of Limit in the context of its requests.
func withCounted(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = c.NetConn()
	}
	if c, ok := conn.(*counted); ok {
		return context.WithValue(ctx, countedKey{}, c)
	}
	return ctx
}

// keepConnection keeps the connection of a request open, even if the listener
// has no room for others, until done is called.
func keepConnection(ctx context.Context) (done func()) {
	if c, ok := ctx.Value(countedKey{}).(*counted); ok {
		return c.work()
	}
	return func() {}
}

func (c *counted) Close() error {
	c.of.mu.Lock()
	c.leave()
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn.
func (c *counted) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
