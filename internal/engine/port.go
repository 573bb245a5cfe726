package engine

import (
	"context"
	"net"
	"strconv"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Dial connects to a TCP port on localhost inside the sandbox. ctx limits only
// dialling. The caller closes the connection, which has a CloseWrite method.
func (s *Sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	var conn net.Conn
	err := s.e.do(ctx, s.action(ops.PortOpen, strconv.Itoa(int(port))), func(ctx context.Context) (err error) {
		if port == 0 {
			return invalid("", "port", "is not a number from 1 to 65535", "")
		}
		d, ok := driver.As[driver.Dialer](s.inst)
		if !ok {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "ports of this provider's sandboxes cannot be reached"}
		}
		conn, err = d.Dial(ctx, port)
		return err
	})
	return conn, err
}

// Preview creates a provider URL for a port. A public URL needs more
// permissions than one with a token.
func (s *Sandbox) Preview(ctx context.Context, req sandbox.PreviewRequest) (p sandbox.Preview, err error) {
	op := ops.PreviewCreate
	if req.Public {
		op = ops.PreviewPublic
	}
	err = s.previews(ctx, op, req.Port, func(ctx context.Context, d driver.Previewer) (err error) {
		if req.Port == 0 {
			return invalid("", "port", "is not a number from 1 to 65535", "")
		}
		p, err = d.Preview(ctx, req)
		return err
	})
	return p, err
}

// Unpreview removes the provider URL of a port.
func (s *Sandbox) Unpreview(ctx context.Context, port uint16) error {
	return s.previews(ctx, ops.PreviewRemove, port, func(ctx context.Context, d driver.Previewer) error { return d.Unpreview(ctx, port) })
}

// Previews returns the ports with a provider URL, without tokens.
func (s *Sandbox) Previews(ctx context.Context) (all []sandbox.Preview, err error) {
	err = s.previews(ctx, ops.PreviewList, 0, func(ctx context.Context, d driver.Previewer) (err error) {
		all, err = d.Previews(ctx)
		return err
	})
	return all, err
}

func (s *Sandbox) previews(ctx context.Context, op ops.Op, port uint16, f func(context.Context, driver.Previewer) error) error {
	subject := ""
	if port != 0 {
		subject = strconv.Itoa(int(port))
	}
	return s.e.do(ctx, s.action(op, subject), func(ctx context.Context) error {
		d, ok := driver.As[driver.Previewer](s.inst)
		if !ok {
			return &sandbox.Error{
				Code: sandbox.CodeUnsupported, Message: "this provider has no URLs for ports", Hint: "use the daemon's: atoll port url SANDBOX PORT",
			}
		}
		return f(ctx, d)
	})
}

// Usage returns the resource usage of the sandbox.
func (s *Sandbox) Usage(ctx context.Context) (sandbox.Usage, error) {
	var u sandbox.Usage
	err := s.e.do(ctx, s.action(ops.SandboxUsage, ""), func(ctx context.Context) (err error) {
		m, ok := driver.As[driver.Meter](s.inst)
		if !ok {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider does not report resource usage"}
		}
		u, err = m.Usage(ctx)
		return err
	})
	return u, err
}
