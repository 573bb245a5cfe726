package drivertest

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// portsInstance replaces Dial.
type portsInstance struct {
	driver.Instance
	dial func(ctx context.Context, port uint16, next driver.Dialer) (net.Conn, error)
}

func (i portsInstance) Unwrap() any { return i.Instance }

func (i portsInstance) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	next, _ := driver.As[driver.Dialer](i.Instance)
	return i.dial(ctx, port, next)
}

func withDial(dial func(ctx context.Context, port uint16, next driver.Dialer) (net.Conn, error)) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance { return portsInstance{inst, dial} })
}

// withConn changes connections.
func withConn(wrap func(net.Conn) net.Conn) func(driver.Provider) driver.Provider {
	return withDial(func(ctx context.Context, port uint16, next driver.Dialer) (net.Conn, error) {
		conn, err := next.Dial(ctx, port)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	})
}

// hookedConn replaces the methods of a connection that are set.
type hookedConn struct {
	*net.UnixConn
	read       func(p []byte) (int, error)
	write      func(p []byte) (int, error)
	closeWrite func() error
	deadline   func(time.Time) error
	close      func() error
}

func (c hookedConn) Read(p []byte) (int, error) {
	if c.read != nil {
		return c.read(p)
	}
	return c.UnixConn.Read(p)
}

func (c hookedConn) Write(p []byte) (int, error) {
	if c.write != nil {
		return c.write(p)
	}
	return c.UnixConn.Write(p)
}

func (c hookedConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

func (c hookedConn) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{c})
}

func (c hookedConn) CloseWrite() error {
	if c.closeWrite != nil {
		return c.closeWrite()
	}
	return c.UnixConn.CloseWrite()
}

func (c hookedConn) SetReadDeadline(t time.Time) error {
	if c.deadline != nil {
		return c.deadline(t)
	}
	return c.UnixConn.SetReadDeadline(t)
}

func (c hookedConn) Close() error {
	if c.close != nil {
		return c.close()
	}
	return c.UnixConn.Close()
}

func hook(set func(*hookedConn)) func(driver.Provider) driver.Provider {
	return withConn(func(conn net.Conn) net.Conn {
		c := hookedConn{UnixConn: conn.(*net.UnixConn)}
		set(&c)
		return c
	})
}

var brokenPorts = []sabotage{
	{"declares ports", true, withFacts(func(f *driver.Facts) { f.Capabilities.Ports = true }), []string{"capabilities/ports", "ports/echo"}},
	{"declares previews", false, withFacts(func(f *driver.Facts) { f.Capabilities.Previews = true }), []string{"capabilities/previews", "previews/token", "previews/public", "previews/destroyed"}},
	{"hides ports", false, withFacts(func(f *driver.Facts) { f.Capabilities.Ports = false }), []string{"capabilities/ports", "ports/echo"}},
	{"dials itself", false, withDial(func(context.Context, uint16, driver.Dialer) (net.Conn, error) {
		a, b := net.Pipe()
		go func() {
			_, _ = io.Copy(io.Discard, b)
		}()
		return a, nil
	}), []string{"ports/echo", "ports/refused", "ports/canceled", "ports/destroyed"}},
	{"says gone where nobody listens", false, withDial(func(ctx context.Context, port uint16, next driver.Dialer) (net.Conn, error) {
		conn, err := next.Dial(ctx, port)
		if sandbox.CodeOf(err) == sandbox.CodeUnavailable {
			err = &sandbox.Error{Code: sandbox.CodeGone}
		}
		return conn, err
	}), []string{"ports/refused"}},
	{"ties a connection to the context of Dial", false, withDial(func(ctx context.Context, port uint16, next driver.Dialer) (net.Conn, error) {
		conn, err := next.Dial(ctx, port)
		if err == nil {
			context.AfterFunc(ctx, func() { conn.Close() })
		}
		return conn, err
	}), []string{"ports/outlives-context"}},
	{"ignores a canceled dial", false, withDial(func(ctx context.Context, port uint16, next driver.Dialer) (net.Conn, error) {
		return next.Dial(context.WithoutCancel(ctx), port)
	}), []string{"ports/canceled"}},
	{"loses bytes", false, hook(func(c *hookedConn) {
		c.write = func(p []byte) (int, error) {
			if len(p) > 1 {
				_, err := c.UnixConn.Write(p[1:])
				return len(p), err
			}
			return c.UnixConn.Write(p)
		}
	}), []string{"ports/echo", "ports/many", "ports/deadline", "ports/outlives-context"}},
	{"closes both ways", false, hook(func(c *hookedConn) { c.closeWrite = c.UnixConn.Close }), []string{"ports/echo", "ports/many"}},
	{"never ends the writing side", false, hook(func(c *hookedConn) { c.closeWrite = func() error { return nil } }), []string{"ports/echo"}},
	{"forgets deadlines", false, hook(func(c *hookedConn) { c.deadline = func(time.Time) error { return nil } }), []string{"ports/deadline"}},
	{"takes what nobody reads", false, hook(func(c *hookedConn) {
		c.write = func(p []byte) (int, error) { return len(p), nil }
	}), []string{"ports/stalled", "ports/echo"}},
	{"does not let a writer go", false, hook(func(c *hookedConn) { c.close = func() error { return nil } }), []string{"ports/stalled"}},
}

// limitsInstance replaces the methods for limits that are set.
type limitsInstance struct {
	driver.Instance
	resize   func(ctx context.Context, limits sandbox.Resources, next driver.Resizer) error
	deadline func(ctx context.Context, at time.Time, next driver.DeadlineSetter) error
	usage    func(ctx context.Context, next driver.Meter) (sandbox.Usage, error)
}

func (i limitsInstance) Unwrap() any { return i.Instance }

func (i limitsInstance) Resize(ctx context.Context, limits sandbox.Resources) error {
	next, _ := driver.As[driver.Resizer](i.Instance)
	if i.resize != nil {
		return i.resize(ctx, limits, next)
	}
	return next.Resize(ctx, limits)
}

func (i limitsInstance) SetDeadline(ctx context.Context, at time.Time) error {
	next, _ := driver.As[driver.DeadlineSetter](i.Instance)
	if i.deadline != nil {
		return i.deadline(ctx, at, next)
	}
	return next.SetDeadline(ctx, at)
}

func (i limitsInstance) Usage(ctx context.Context) (sandbox.Usage, error) {
	next, _ := driver.As[driver.Meter](i.Instance)
	if i.usage != nil {
		return i.usage(ctx, next)
	}
	return next.Usage(ctx)
}

func withLimits(l limitsInstance) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance {
		l := l
		l.Instance = inst
		return l
	})
}

func withResize(f func(ctx context.Context, limits sandbox.Resources, next driver.Resizer) error) func(driver.Provider) driver.Provider {
	return withLimits(limitsInstance{resize: f})
}

func withDeadline(change func(time.Time) time.Time) func(driver.Provider) driver.Provider {
	return withLimits(limitsInstance{deadline: func(ctx context.Context, at time.Time, next driver.DeadlineSetter) error {
		return next.SetDeadline(ctx, change(at))
	}})
}

func withUsage(change func(*sandbox.Usage)) func(driver.Provider) driver.Provider {
	return withLimits(limitsInstance{usage: func(ctx context.Context, next driver.Meter) (sandbox.Usage, error) {
		u, err := next.Usage(ctx)
		change(&u)
		return u, err
	}})
}

var brokenLimits = []sabotage{
	{"declares limits", true, withFacts(func(f *driver.Facts) {
		f.Capabilities.Resize, f.Capabilities.Deadline, f.Capabilities.Usage = true, true, true
	}), []string{"capabilities/resize", "capabilities/deadline", "capabilities/usage", "resize/destroyed", "deadline/set", "usage/figures"}},
	{"hides limits", false, withFacts(func(f *driver.Facts) {
		f.Capabilities.Resize, f.Capabilities.Deadline, f.Capabilities.Usage = false, false, false
	}), []string{"capabilities/resize", "capabilities/deadline", "capabilities/usage"}},
	{"resizes nothing", false, withResize(func(context.Context, sandbox.Resources, driver.Resizer) error { return nil }), []string{"resize/processes", "resize/memory", "resize/destroyed"}},
	{"lifts limits by the way", false, withResize(func(ctx context.Context, l sandbox.Resources, next driver.Resizer) error {
		if l.PIDs == 0 {
			l.PIDs = -1
		}
		return next.Resize(ctx, l)
	}), []string{"resize/processes"}},
	{"lowers only", false, withResize(func(ctx context.Context, l sandbox.Resources, next driver.Resizer) error {
		l.PIDs = min(l.PIDs, fewProcesses)
		return next.Resize(ctx, l)
	}), []string{"resize/processes"}},
	{"resizes by halves", false, withResize(func(ctx context.Context, l sandbox.Resources, next driver.Resizer) error {
		_ = next.Resize(ctx, sandbox.Resources{PIDs: l.PIDs})
		return next.Resize(ctx, l)
	}), []string{"resize/all-or-nothing"}},
	{"claims a limit of memory", false, withFacts(func(f *driver.Facts) { f.Limits["memory"] = driver.Limit{Holds: true, By: "hope"} }), []string{"resize/memory"}},
	{"never ends", false, withDeadline(func(time.Time) time.Time { return time.Time{} }), []string{"deadline/set", "deadline/earlier", "deadline/past", "pause/deadline"}},
	{"ends at once", false, withDeadline(func(time.Time) time.Time { return time.Unix(1, 0) }), []string{"deadline/later", "deadline/never", "deadline/elsewhere"}},
	{"keeps the first deadline", false, withLimits(limitsInstance{deadline: func(context.Context, time.Time, driver.DeadlineSetter) error {
		return nil
	}}), []string{"deadline/later", "deadline/never", "deadline/earlier", "deadline/elsewhere", "deadline/destroyed"}},
	{"knows no figure", false, withUsage(func(u *sandbox.Usage) { u.PIDs = -1 }), []string{"usage/figures"}},
	{"samples never", false, withUsage(func(u *sandbox.Usage) { u.Sampled = time.Time{} }), []string{"usage/figures"}},
	{"tells what never changes", false, withUsage(func(u *sandbox.Usage) { u.CPU, u.Disk, u.PIDs = 1, 1, 1 }), []string{"usage/processes", "usage/processor", "usage/disk"}},
	{"meters what is gone", false, withLimits(limitsInstance{usage: func(context.Context, driver.Meter) (sandbox.Usage, error) {
		return sandbox.Usage{Sampled: time.Now()}, nil
	}}), []string{"usage/destroyed", "usage/figures"}},
}
