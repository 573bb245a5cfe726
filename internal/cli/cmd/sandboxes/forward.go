package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// forwarder connects who comes to local ports to ports of a sandbox.
type forwarder struct {
	env     *target.Env
	sandbox target.Sandbox
	asJSON  bool

	conns sync.WaitGroup
	say   sync.Mutex
}

// run listens on all ports, or on none, and serves them until ctx ends or the
// sandbox is gone.
func (f *forwarder) run(ctx context.Context, address string, pairs []forwardPair) error {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
		f.conns.Wait()
	}()
	for _, p := range pairs {
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(p.local))))
		if err != nil {
			return &sandbox.Error{
				Code: sandbox.CodeUnavailable, Subject: strconv.Itoa(int(p.local)), Message: "cannot listen here: " + err.Error(), Cause: err,
				Hint: fmt.Sprintf("choose another local port, or any that is free: 0:%d", p.remote),
			}
		}
		listeners = append(listeners, l)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // before the listeners are closed, for those who accept
	for i, l := range listeners {
		if err := f.tell(l.Addr(), pairs[i].remote); err != nil {
			return err
		}
		remote := pairs[i].remote
		f.conns.Go(func() {
			stream.Forward(ctx, l, func(ctx context.Context) (net.Conn, error) { return f.sandbox.Dial(ctx, remote) },
				func(err error) { f.failed(err, cancel) })
		})
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // to be interrupted is how it ends
}

// tell prints the address of a port.
func (f *forwarder) tell(at net.Addr, remote uint16) error {
	if f.asJSON {
		return f.env.PrintJSONLine(struct {
			Local  string `json:"local"`
			Remote uint16 `json:"remote"`
		}{at.String(), remote})
	}
	return f.env.Printf("%s -> %s:%d\n", at, f.sandbox.Name(), remote)
}

// failed reports why a connection was refused. A sandbox that is gone ends the forward.
func (f *forwarder) failed(err error, end context.CancelCauseFunc) {
	if code := sandbox.CodeOf(err); code == sandbox.CodeGone || code == sandbox.CodeNotFound {
		end(err)
		return
	}
	f.complain(err)
}

func (f *forwarder) complain(err error) {
	f.say.Lock()
	defer f.say.Unlock()
	f.env.Report(nil, err)
}
