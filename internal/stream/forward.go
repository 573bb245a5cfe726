package stream

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// acceptPause is how long nobody is let in when this process has no
// descriptors left.
const acceptPause = 50 * time.Millisecond

// Forward accepts the connections of a TCP listener and carries each to one that
// dial makes, whose context ends with the connection. One that cannot be made is
// refused, as far as one that was accepted still can be, and failed is told why;
// it may be called concurrently. Forward closes the listener, and returns when ctx
// ends or the listener is closed, after all connections have ended.
func Forward(ctx context.Context, l net.Listener, dial func(context.Context) (net.Conn, error), failed func(error)) {
	var conns sync.WaitGroup
	defer conns.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer l.Close()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			failed(err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		conns.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			inside, err := dial(ctx)
			if err == nil {
				Join(ctx, AsDuplex(conn), AsDuplex(inside))
				return
			}
			breakOff(AsDuplex(conn))
			if ctx.Err() == nil {
				failed(err)
			}
		})
	}
}
