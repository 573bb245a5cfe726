package control

import (
	"context"
	"net"
	"strconv"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Dial connects to a TCP port inside, as a program there would at localhost.
// The context bounds the dialling only; the caller closes the connection, which
// has a CloseWrite.
func (s *Sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	var conn net.Conn
	err := s.c.do(ctx, s.action(ops.PortOpen, strconv.Itoa(int(port))), func(ctx context.Context) (err error) {
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

// Usage tells what the sandbox consumes.
func (s *Sandbox) Usage(ctx context.Context) (sandbox.Usage, error) {
	var u sandbox.Usage
	err := s.c.do(ctx, s.action(ops.SandboxUsage, ""), func(ctx context.Context) (err error) {
		m, ok := driver.As[driver.Meter](s.inst)
		if !ok {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider does not know what its sandboxes consume"}
		}
		u, err = m.Usage(ctx)
		return err
	})
	return u, err
}
