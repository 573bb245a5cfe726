package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/atoll-run/atoll/sandbox"
)

// ports implements driver.Dialer.
type ports struct{ *remoteSandbox }

// Dial implements driver.Dialer.
func (p ports) Dial(ctx context.Context, port uint16) (c net.Conn, err error) {
	err = p.do(ctx, func() error {
		tunnel, err := p.s.Dial(ctx, port)
		if err != nil {
			return err
		}
		if c, err = relay(tunnel); err != nil {
			return errors.Join(err, tunnel.Close())
		}
		return nil
	})
	return c, err
}

// previews implements driver.Previewer with the other daemon's previews.
type previews struct{ *remoteSandbox }

// Preview implements driver.Previewer.
func (p previews) Preview(ctx context.Context, req sandbox.PreviewRequest) (out sandbox.Preview, err error) {
	err = p.do(ctx, func() error {
		out, err = p.s.Preview(ctx, req)
		return err
	})
	return out, err
}

// Unpreview implements driver.Previewer.
func (p previews) Unpreview(ctx context.Context, port uint16) error {
	return p.do(ctx, func() error { return p.s.Unpreview(ctx, port) })
}

// Previews implements driver.Previewer.
func (p previews) Previews(ctx context.Context) (all []sandbox.Preview, err error) {
	err = p.do(ctx, func() error {
		all, err = p.s.Previews(ctx)
		return err
	})
	return all, err
}

// relay puts a socket pair in front of a tunnel, because an expired deadline
// would end the tunnel. The tunnel is closed when the socket is closed or when
// both directions have ended.
func relay(tunnel net.Conn) (net.Conn, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	go func() {
		defer tunnel.Close()
		defer far.Close()
		back := make(chan struct{})
		go func() {
			defer close(back)
			_, err := io.Copy(far, tunnel)
			if err == nil {
				err = far.CloseWrite()
			}
			if err != nil {
				_ = far.Close() // the tunnel failed, or the socket was closed
			}
		}()
		if _, err := io.Copy(tunnel, far); err != nil || closeWrite(tunnel) != nil {
			_ = tunnel.Close()
		}
		<-back
	}()
	return near, nil
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// socketPair returns two connected sockets.
func socketPair() (near, far *net.UnixConn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]*net.UnixConn
	var failed error
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "port")
		c, err := net.FileConn(f)
		failed = errors.Join(failed, err, f.Close())
		if c != nil {
			ends[i], _ = c.(*net.UnixConn)
		}
	}
	if failed == nil {
		return ends[0], ends[1], nil
	}
	for _, c := range ends {
		if c != nil {
			_ = c.Close()
		}
	}
	return nil, nil, failed
}
