package server

import (
	"net"
	"sync"
)

// MaxConnections is how many connections a listener that others can reach has
// at a time.
const MaxConnections = 4096

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
