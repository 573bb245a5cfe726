package kernel

import (
	"context"
	"net"
	"os"
	"syscall"
)

// firstPort is where the ports begin that a listener gets that wants any.
const firstPort = 32768

// Listener takes connections to a port of the loopback, the only network there
// is.
type Listener struct {
	Port uint16
	p    *Proc
	made chan net.Conn
}

// Listen takes a port, any free one for 0. It is given back when the process
// ends.
func (p *Proc) Listen(port uint16) (*Listener, error) {
	p.K.mu.Lock()
	defer p.K.mu.Unlock()
	if p.K.ports == nil {
		p.K.ports = map[uint16]*Listener{}
	}
	if port == 0 {
		for port = firstPort; p.K.ports[port] != nil; port++ {
			// There are never as many listeners as ports.
		}
	}
	if l := p.K.ports[port]; l != nil && !l.p.Dead() {
		return nil, syscall.EADDRINUSE
	}
	l := &Listener{Port: port, p: p, made: make(chan net.Conn)}
	p.K.ports[port] = l
	return l, nil
}

// Accept waits for a connection. It is closed with the process.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.made:
		context.AfterFunc(l.p.ctx, func() { conn.Close() })
		return conn, nil
	case <-l.p.ctx.Done():
		return nil, ErrKilled
	}
}

// Dial connects to a port from outside.
func (k *Kernel) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	k.mu.Lock()
	l := k.ports[port]
	k.mu.Unlock()
	if l == nil || l.p.Dead() {
		return nil, syscall.ECONNREFUSED
	}
	ours, theirs, err := connection()
	if err != nil {
		return nil, err
	}
	select {
	case l.made <- theirs:
		return ours, nil
	case <-l.p.ctx.Done():
		err = syscall.ECONNREFUSED
	case <-ctx.Done():
		err = ctx.Err()
	}
	ours.Close()
	theirs.Close()
	return nil, err
}

// connection makes both ends of a connection: sockets of the machine, without
// a name, so that they block and close as sockets do.
func connection() (a, b net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "connection")
		conns[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			if i == 0 {
				syscall.Close(fds[1])
			} else {
				conns[0].Close()
			}
			return nil, nil, err
		}
	}
	return conns[0], conns[1], nil
}

// Limit sets how many processes there can be at once, as far as the kernel
// itself can have that many.
func (k *Kernel) Limit(procs int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limit = min(max(procs, 0), maxProcs)
}

// Count returns how many processes there are.
func (k *Kernel) Count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.procs)
}
