package stream

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// acceptPause is the pause between attempts to accept when this process has no
// free file descriptors.
const acceptPause = 50 * time.Millisecond

// Forward accepts connections of a TCP listener, and connects each to a
// connection from dial, whose context ends with the connection. If dial fails,
// the accepted connection is reset, and failed is called with the error,
// possibly concurrently. Forward closes the listener. It returns when ctx ends
// or the listener is closed, after all connections have ended.
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
