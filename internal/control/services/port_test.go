package services_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/sandbox"
)

// reachable is a provider whose sandboxes accept connections to every port.
type reachable struct{ driver.Provider }

func (p reachable) Unwrap() any { return p.Provider }

func (p reachable) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	in, err := p.Provider.Create(ctx, spec)
	return reachableInstance{in}, err
}

func (p reachable) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	in, err := p.Provider.Attach(ctx, id)
	return reachableInstance{in}, err
}

type reachableInstance struct{ driver.Instance }

func (i reachableInstance) Unwrap() any { return i.Instance }

func (i reachableInstance) Dial(context.Context, uint16) (net.Conn, error) {
	near, _ := net.Pipe()
	return near, nil
}

// A connection to a port is use for as long as it is open. The proxy for ports
// dials in a context that never ends.
func TestPortKeepsAwake(t *testing.T) {
	onFakeTimeWith(t, func(p driver.Provider) driver.Provider { return reachable{p} }, func(t *testing.T, p *services.Services, ctx context.Context) {
		create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: idle(time.Minute, sandbox.IdlePause)})
		conn, err := p.Exec.DialPort(context.WithoutCancel(ctx), "one", 8000)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if now := get(t, p, ctx, "one"); now.State != sandbox.Running {
			t.Errorf("with an open connection it is %s", now.State)
		}
		_ = conn.Close()
		time.Sleep(2 * time.Minute)
		if now := get(t, p, ctx, "one"); now.State != sandbox.Paused {
			t.Errorf("after the connection was closed it is %s", now.State)
		}
	})
}
