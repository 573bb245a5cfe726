package faults

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Network is a fault of connections through a [Proxy]. The zero value has no
// effect.
type Network struct {
	Refuse   bool          // close connections at once
	Silent   bool          // accept, read, and never answer
	Delay    time.Duration // before each piece of a response
	Truncate int64         // close the connection after this many bytes of the response; 0: do not
	Lose     bool          // forward the request and drop the whole response
}

// Proxy forwards TCP connections to a server and breaks them. Make one with
// [NewProxy] and close it.
type Proxy struct {
	target string
	l      net.Listener
	work   sync.WaitGroup

	mu      sync.Mutex
	network Network
	conns   map[net.Conn]bool
	closed  bool
}

// NewProxy listens on a loopback port and forwards to target, HOST:PORT. The
// caller closes it.
func NewProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, l: l, conns: map[net.Conn]bool{}}
	p.work.Go(p.accept)
	return p, nil
}

// Addr returns the address to connect to, HOST:PORT.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Set replaces the fault. It applies to new connections, and to further
// responses on open ones.
func (p *Proxy) Set(n Network) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network = n
}

func (p *Proxy) now() Network {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.network
}

// Cut closes all open connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Close stops listening, cuts all connections and waits for them.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.l.Close()
	p.Cut()
	p.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// track registers a connection until it is closed. After Close, it closes the
// connection and returns false.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *Proxy) release(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		if p.now().Refuse {
			_ = c.Close()
			continue
		}
		if p.track(c) {
			p.work.Go(func() { p.serve(c) })
		}
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.release(client)
	if p.now().Silent {
		_, _ = io.Copy(io.Discard, client)
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil || !p.track(server) {
		return
	}
	defer p.release(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(server, client)
		if half, ok := server.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	}()
	p.answer(client, server)
	_, _ = client.Close(), server.Close()
	<-done
}

// answer copies the server's response, with the faults applied.
func (p *Proxy) answer(client, server net.Conn) {
	buf := make([]byte, 32<<10)
	for sent := int64(0); ; {
		n, err := server.Read(buf)
		if n > 0 {
			network := p.now()
			time.Sleep(network.Delay)
			piece := buf[:n]
			if network.Lose {
				return
			}
			if limit := network.Truncate; limit > 0 && sent+int64(n) > limit {
				_, _ = client.Write(piece[:max(0, limit-sent)])
				return
			}
			if _, err := client.Write(piece); err != nil {
				return
			}
			sent += int64(n)
		}
		if err != nil {
			return
		}
	}
}
