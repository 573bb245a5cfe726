// Package ports listens on the published ports of sandboxes, as long as the
// sandboxes exist.
package ports

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// Dialer connects to a port of a sandbox; implemented by package exec.
type Dialer interface {
	DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error)
}

// Service listens on published ports. It is safe for concurrent use.
type Service struct {
	*core.Core
	dialer Dialer

	mu   sync.Mutex
	open map[sandbox.ID]*published
}

// published are the ports of one sandbox.
type published struct {
	tenant, name string
	ports        []*port
}

// port is a published port. If it has no listener, err is the reason.
type port struct {
	sandbox.PublishedPort // as recorded
	listener              net.Listener
	err                   error
}

// New returns a Service. It stops listening when the Core is closed.
func New(c *core.Core, d Dialer) *Service {
	return &Service{Core: c, dialer: d, open: map[sandbox.ID]*published{}}
}

// Reserve starts to listen on ports of a sandbox. If it cannot listen on all of
// them, it listens on none and returns an error. It returns the ports with
// chosen port numbers.
func (s *Service) Reserve(tenant string, id sandbox.ID, name string, want []sandbox.PublishedPort) ([]sandbox.PublishedPort, error) {
	if len(want) == 0 {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of(tenant, id, name)
	var added []*port
	out := slices.Clone(want)
	for i, w := range want {
		if known := p.find(w); known != nil && known.listener != nil {
			continue
		}
		l, err := listen(w)
		if err != nil {
			for _, a := range added {
				p.remove(a)
			}
			s.tidy(id)
			return nil, err
		}
		out[i].HostPort = uint16(l.Addr().(*net.TCPAddr).Port)
		a := &port{PublishedPort: out[i], listener: l}
		if known := p.find(w); known != nil {
			p.remove(known)
		}
		p.ports, added = append(p.ports, a), append(added, a)
		s.accept(tenant, id, a)
	}
	return out, nil
}

// Sync listens on the ports of a recorded sandbox while it is running or
// paused, and stops otherwise. Failed ports are retried by the next call.
func (s *Service) Sync(b *store.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.State == sandbox.Creating {
		return // the creator has reserved them
	}
	var want []sandbox.PublishedPort
	if published := b.State != sandbox.Stopped && b.State != sandbox.Failed && b.State != sandbox.Gone; published {
		want = b.Spec.Ports
	}
	p := s.of(b.Tenant, b.ID, b.Name)
	for _, old := range slices.Clone(p.ports) {
		if !slices.Contains(want, old.PublishedPort) {
			p.remove(old)
		}
	}
	for _, w := range want {
		known := p.find(w)
		if known == nil {
			known = &port{PublishedPort: w}
			p.ports = append(p.ports, known)
		}
		if known.listener != nil {
			continue
		}
		l, err := listen(w)
		if err != nil {
			if known.err == nil {
				s.Logger.Error("cannot publish a port", "sandbox", b.Name, "error", err)
			}
			known.err = err
			continue
		}
		known.listener, known.err = l, nil
		s.accept(b.Tenant, b.ID, known)
	}
	s.tidy(b.ID)
}

// List returns the published ports of the caller's tenant, ordered by sandbox
// name.
func (s *Service) List(ctx context.Context) ([]sandbox.Publication, error) {
	who, err := s.Look(ctx, ops.PortList, "")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []sandbox.Publication{}
	for id, p := range s.open {
		if p.tenant != who.Tenant {
			continue
		}
		for _, one := range p.ports {
			shown := sandbox.Publication{PublishedPort: one.PublishedPort, Sandbox: id, Name: p.name}
			shown.Address = cmp.Or(shown.Address, sandbox.LoopbackAddress)
			if one.err != nil {
				shown.Error = one.err.Error()
			}
			all = append(all, shown)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.Publication) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.HostPort, b.HostPort), strings.Compare(a.Address, b.Address))
	})
	return all, nil
}

func (s *Service) of(tenant string, id sandbox.ID, name string) *published {
	if s.open[id] == nil {
		s.open[id] = &published{tenant: tenant, name: name}
	}
	return s.open[id]
}

// tidy removes a sandbox without ports.
func (s *Service) tidy(id sandbox.ID) {
	if p := s.open[id]; p != nil && len(p.ports) == 0 {
		delete(s.open, id)
	}
}

func (p *published) find(w sandbox.PublishedPort) *port {
	if i := slices.IndexFunc(p.ports, func(o *port) bool { return o.PublishedPort == w }); i >= 0 {
		return p.ports[i]
	}
	return nil
}

func (p *published) remove(one *port) {
	if one.listener != nil {
		_ = one.listener.Close()
	}
	p.ports = slices.DeleteFunc(p.ports, func(o *port) bool { return o == one })
}

// accept serves a port in the background. The daemon dials on behalf of the
// tenant, so clients need no key.
func (s *Service) accept(tenant string, id sandbox.ID, p *port) {
	ctx := guard.WithOwner(s.Life, tenant)
	l, to := p.listener, p.Port
	s.Go(func() {
		stream.Forward(ctx, l, func(ctx context.Context) (net.Conn, error) { return s.dialer.DialPort(ctx, string(id), to) },
			func(err error) {
				s.Logger.Debug("no connection to a published port", "sandbox", id, "port", to, "error", err)
			})
	})
}

// listen opens a listener, or returns why it cannot.
func listen(p sandbox.PublishedPort) (net.Listener, error) {
	network := "tcp6"
	if at, err := netip.ParseAddr(cmp.Or(p.Address, sandbox.LoopbackAddress)); err == nil && at.Unmap().Is4() {
		network = "tcp4"
	}
	l, err := net.Listen(network, p.Listen())
	if err == nil {
		return l, nil
	}
	e := &sandbox.Error{Code: sandbox.CodeUnavailable, Op: string(ops.PortPublish), Subject: p.Listen(), Message: "cannot listen there: " + err.Error(), Cause: err}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Code, e.Message, e.Hint = sandbox.CodeConflict, "the port is taken", "choose another port of the machine, or leave it out for any that is free"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Code, e.Message = sandbox.CodeInvalid, "this machine does not have the address"
	case errors.Is(err, syscall.EACCES):
		e.Code, e.Message, e.Hint = sandbox.CodeDenied, "the daemon may not listen on this port", "choose a port from 1024 on"
	}
	return nil, e
}
