package faults

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Network is what goes wrong with connections through a [Proxy]. The zero value
// goes wrong with nothing.
type Network struct {
	Refuse   bool          // close connections at once
	Silent   bool          // accept, read, and never answer
	Delay    time.Duration // before each piece of an answer
	Truncate int64         // cut the connection after so many bytes of the answer; 0: do not
	Lose     bool          // let the request through and drop the whole answer
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

// Set replaces what goes wrong. It counts for connections from now on, and for
// what those that are open still answer.
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

// Cut closes all connections that are open.
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

// track remembers a connection until it is closed. It reports false, and closes
// the connection, after Close.
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

// answer copies what the server says, as far as the faults let it.
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
