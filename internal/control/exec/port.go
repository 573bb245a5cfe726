package exec

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// maxConns is the maximum number of connections to the ports of one sandbox,
// because each uses buffers in the daemon.
const maxConns = 256

// DialPort connects to a port of a sandbox, by name or id. Every connection is
// authorized and recorded. The caller closes it. The sandbox is not idle before
// that, unless ctx ends.
func (s *Service) DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error) {
	// The dial context of an http.Transport does not end with its request.
	ctx, leave := context.WithCancel(ctx)
	conn, err := s.dialPort(ctx, ref, port, leave)
	if err != nil {
		leave()
	}
	return conn, err
}

// dialPort is DialPort. leave is called when the connection is closed.
func (s *Service) dialPort(ctx context.Context, ref string, port uint16, leave func()) (net.Conn, error) {
	h, err := s.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !s.conns.take(h.ID()) {
		return nil, &sandbox.Error{
			Code: sandbox.CodeExhausted, Op: "port.open", Subject: h.Name(),
			Message: fmt.Sprintf("there are %d connections to its ports already", maxConns), Hint: "close some first",
		}
	}
	conn, err := h.Dial(ctx, port)
	if err != nil {
		s.conns.release(h.ID())
		return nil, err
	}
	return &portConn{Conn: conn, done: sync.OnceFunc(func() {
		s.conns.release(h.ID())
		leave()
	})}, nil
}

// Preview creates a provider URL for a port of a sandbox.
func (s *Service) Preview(ctx context.Context, ref string, req sandbox.PreviewRequest) (sandbox.Preview, error) {
	h, err := s.Open(ctx, ref)
	if err != nil {
		return sandbox.Preview{}, err
	}
	return h.Preview(ctx, req)
}

// Unpreview removes the provider URL of a port.
func (s *Service) Unpreview(ctx context.Context, ref string, port uint16) error {
	h, err := s.Open(ctx, ref)
	if err != nil {
		return err
	}
	return h.Unpreview(ctx, port)
}

// Previews returns the ports of a sandbox that have a provider URL.
func (s *Service) Previews(ctx context.Context, ref string) ([]sandbox.Preview, error) {
	h, err := s.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	return h.Previews(ctx)
}

// portConn is a counted connection.
type portConn struct {
	net.Conn
	done func()
}

// CloseWrite closes the sending direction.
func (c *portConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close ends the connection.
func (c *portConn) Close() error {
	defer c.done()
	return c.Conn.Close()
}

// connCount counts the connections to each sandbox.
type connCount struct {
	mu sync.Mutex
	n  map[sandbox.ID]int
}

func (c *connCount) take(id sandbox.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[sandbox.ID]int{}
	}
	if c.n[id] >= maxConns {
		return false
	}
	c.n[id]++
	return true
}

func (c *connCount) release(id sandbox.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n[id]--; c.n[id] <= 0 {
		delete(c.n, id)
	}
}

// Validity of a pass.
const (
	defaultPassLife = 24 * time.Hour
	maxPassLife     = 366 * 24 * time.Hour
	maxPassPorts    = 64
)

// SharePorts creates a token that gives anyone access to ports of a running
// sandbox: the given ports, or all if none is given. life is its validity; zero
// means one day.
func (s *Service) SharePorts(ctx context.Context, ref string, ports []uint16, life time.Duration) (token string, expires time.Time, err error) {
	const op = ops.PortShare
	h, err := s.Open(ctx, ref)
	if err != nil {
		return "", expires, err
	}
	who, err := guard.Principal(ctx)
	if err != nil {
		return "", expires, err
	}
	if life == 0 {
		life = defaultPassLife
	}
	action := engine.Action{Op: op, Sandbox: h.ID(), Name: h.Name(), Subject: portNames(ports)}
	err = s.Do(ctx, op, core.SubjectOf(action), func(context.Context) (err error) {
		if life < 0 || life > maxPassLife {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "expires", Message: "is not within a year from now"}
		}
		if len(ports) > maxPassPorts {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "ports", Message: fmt.Sprintf("are more than %d; leave the list empty for all ports", maxPassPorts)}
		}
		expires = s.Store.Now().Add(life)
		token, err = s.cfg.Passes.Seal(key.Pass{
			Tenant: who.Tenant, Sandbox: h.ID(), Ports: ports, Expires: expires, Key: who.Key, UID: who.UID,
		})
		return err
	})
	return token, expires, err
}

func portNames(ports []uint16) string {
	if len(ports) == 0 {
		return "all ports"
	}
	return strings.Trim(fmt.Sprint(ports), "[]")
}

// EnterPort checks a port token. It returns the sandbox that the token is for,
// and the context for connecting to the port. ref is the sandbox's name or id
// in the request. All failures return the same error.
func (s *Service) EnterPort(ctx context.Context, token, ref string, port uint16) (context.Context, sandbox.ID, error) {
	pass, err := s.cfg.Passes.Open(token)
	if err != nil {
		return nil, "", err
	}
	if sandbox.ValidateName(ref) != nil || !pass.Opens(port, s.Store.Now()) {
		return nil, "", key.NotAPass()
	}
	var b store.Sandbox
	err = s.Store.View(ctx, func(tx *store.Tx) (err error) {
		if err := s.makerStands(ctx, tx, &pass); err != nil {
			return err
		}
		b, err = tx.Sandboxes().Find(ctx, pass.Tenant, ref)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			b, err = tx.Sandboxes().Get(ctx, pass.Tenant, sandbox.ID(ref))
		}
		return err
	})
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.CodeNotFound || code == sandbox.CodeInvalid, err == nil && b.ID != pass.Sandbox:
		return nil, "", key.NotAPass()
	case err != nil:
		return nil, "", err
	}
	if pass.Key == "" {
		return guard.WithPrincipal(ctx, pass.Bearer()), b.ID, nil
	}
	return s.cfg.Tenants.KeepAlive(ctx, pass.Bearer(), pass.Tenant, pass.Key), b.ID, nil
}

// makerStands checks that the creator of a pass is still allowed to create it.
func (s *Service) makerStands(ctx context.Context, tx *store.Tx, pass *key.Pass) error {
	if pass.Key == "" {
		return nil
	}
	err := s.cfg.Tenants.Valid(ctx, tx, pass.Tenant, pass.Key)
	if sandbox.CodeOf(err) == sandbox.CodeUnauthorized {
		return key.NotAPass()
	}
	return err
}
