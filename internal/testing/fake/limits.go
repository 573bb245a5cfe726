package fake

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.Dialer         = (*instance)(nil)
	_ driver.Resizer        = (*instance)(nil)
	_ driver.DeadlineSetter = (*instance)(nil)
	_ driver.Meter          = (*instance)(nil)
)

// listener takes connections to a port of the sandbox's loopback.
type listener struct {
	ctx  context.Context // of the program that listens
	made chan net.Conn
}

// listen takes a free port.
func (s *fakeSandbox) listen(ctx context.Context) (uint16, *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	port := uint16(32768)
	for s.ports[port] != nil && s.ports[port].ctx.Err() == nil {
		port++ // There are never as many listeners as ports.
	}
	s.ports[port] = &listener{ctx, make(chan net.Conn)}
	return port, s.ports[port]
}

// Dial connects to a port on which a program inside listens.
func (i *instance) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if err := i.begin(ctx, "dial"); err != nil {
		return nil, err
	}
	refused := fail(sandbox.CodeUnavailable, "dial", strconv.Itoa(int(port)), "nothing listens on this port inside the sandbox")
	i.mu.Lock()
	l := i.ports[port]
	i.mu.Unlock()
	if l == nil || l.ctx.Err() != nil {
		return nil, refused
	}
	ours, theirs, err := connection()
	if err != nil {
		return nil, err
	}
	select {
	case l.made <- theirs:
		return ours, nil
	case <-l.ctx.Done():
		err = errors.Join(i.gone("dial"), refused)
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

// Resize changes the one limit that the fake has.
func (i *instance) Resize(ctx context.Context, want sandbox.Resources) error {
	if err := errors.Join(i.provider.begin(ctx, "resize"), i.gone("resize")); err != nil {
		return err
	}
	if want.CPUs != 0 || want.Memory != 0 || want.Disk != 0 {
		return fail(sandbox.CodeUnsupported, "resize", string(i.spec.ID), "the fake limits the number of processes only")
	}
	i.setLimit(want.PIDs)
	return nil
}

// SetDeadline moves the end of the sandbox.
func (i *instance) SetDeadline(ctx context.Context, at time.Time) error {
	if err := errors.Join(i.provider.begin(ctx, "deadline"), i.gone("deadline")); err != nil {
		return err
	}
	i.endAt(at)
	return nil
}

// endAt replaces the time at which the sandbox ends; the zero time is never.
func (s *fakeSandbox) endAt(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lifetime != nil {
		s.lifetime.Stop()
		s.lifetime = nil
	}
	if at.IsZero() || s.exit != nil {
		return
	}
	s.lifetime = time.AfterFunc(time.Until(at), func() {
		s.end(sandbox.Exit{Code: 137, Signal: sigKill, Reason: sandbox.ReasonLifetime, Detail: "the lifetime is over"})
	})
}

// Usage counts processes. Nothing else is measured.
func (i *instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	if err := errors.Join(i.provider.begin(ctx, "usage"), i.gone("usage")); err != nil {
		return sandbox.Usage{}, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return sandbox.Usage{CPU: -1, Memory: -1, Disk: -1, PIDs: int64(i.count), Sampled: time.Now()}, nil
}
