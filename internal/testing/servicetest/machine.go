package servicetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Output is what a command wrote, and how it ended.
type Output struct {
	Stdout, Stderr []byte
	Exit           sandbox.Exit
	Truncated      bool // there was more
}

// Run runs a command to its end. It keeps the first limit bytes of each stream.
func Run(ctx context.Context, in driver.Instance, cmd sandbox.Command, limit int) (out Output, err error) {
	var mu sync.Mutex
	keep := func(to *[]byte) func([]byte) error {
		return func(b []byte) error {
			mu.Lock()
			defer mu.Unlock()
			room := min(len(b), limit-len(*to))
			*to, out.Truncated = append(*to, b[:room]...), out.Truncated || room < len(b)
			return nil
		}
	}
	out.Exit, err = Stream(ctx, in, cmd, keep(&out.Stdout), keep(&out.Stderr))
	return out, err
}

// Stream runs a command to its end and forwards its output as it arrives. The
// functions are called concurrently with each other. It ends the command when
// the context ends.
func Stream(ctx context.Context, in driver.Instance, cmd sandbox.Command, stdout, stderr func([]byte) error) (sandbox.Exit, error) {
	p, err := in.Exec(ctx, &cmd)
	if err != nil {
		return sandbox.Exit{}, err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	var readers sync.WaitGroup
	readers.Go(func() { Pump(p.Stdout(), stdout) })
	readers.Go(func() { Pump(p.Stderr(), stderr) })
	readers.Wait()
	return p.Wait(ctx)
}

// Interact runs a command with input to its end and forwards its output. receive
// passes on what the client sends until it hangs up. Then, or when the context
// ends, the command is told to end when the sandbox continues, but not processes
// that have left its group. It is an ordinary process of the machine: snapshots
// contain it, and it continues in their copies.
func (c *Cloud) Interact(ctx context.Context, in driver.Instance, cmd sandbox.Command, stdout, stderr func([]byte) error, receive func(driver.Process)) (sandbox.Exit, error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	cmd.Stdin, cmd.Background = true, true
	p, err := in.Exec(ctx, &cmd)
	if err != nil {
		return sandbox.Exit{}, err
	}
	defer c.Work.Go(func() {
		_ = p.Signal(context.WithoutCancel(ctx), int(unix.SIGTERM)) // it may have ended
		_ = p.Close()
	})
	c.Work.Go(func() {
		defer end()
		receive(p)
	})
	done := make(chan struct{})
	var exit sandbox.Exit
	c.Work.Go(func() {
		defer close(done)
		var readers sync.WaitGroup
		readers.Go(func() { Pump(p.Stdout(), stdout) })
		readers.Go(func() { Pump(p.Stderr(), stderr) })
		readers.Wait()
		exit, err = p.Wait(ctx)
	})
	select {
	case <-done:
		return exit, err
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Pump passes on what can be read until the end, or until the receiver stops.
func Pump(r io.Reader, to func([]byte) error) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && to(buf[:n]) != nil || err != nil {
			return
		}
	}
}

// Files returns the file system of a sandbox.
func Files(in driver.Instance) (driver.FileSystem, error) {
	fs, ok := driver.As[driver.FileSystem](in)
	if !ok {
		return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "the sandboxes of the fake have no files"}
	}
	return fs, nil
}

// Timer calls a function after a while, unless it is set again first. The zero
// value never does. Its method may be called concurrently.
type Timer struct {
	mu sync.Mutex
	t  *time.Timer
}

// Set replaces what the timer does. Zero stops it.
func (t *Timer) Set(d time.Duration, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.t != nil {
		t.t.Stop()
	}
	if t.t = nil; d > 0 {
		t.t = time.AfterFunc(d, f)
	}
}

// SendFile answers with a file of a sandbox.
func SendFile(w http.ResponseWriter, r *http.Request, in driver.Instance, name string) error {
	fs, err := filesAt(in, name)
	if err != nil {
		return err
	}
	body, _, err := fs.Read(r.Context(), path.Clean(name), driver.ReadOptions{})
	if err != nil {
		return err
	}
	defer body.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := io.Copy(w, body); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// TakeFile writes a file of a sandbox.
func TakeFile(r *http.Request, in driver.Instance, name string, body io.Reader) error {
	fs, err := filesAt(in, name)
	if err == nil {
		_, err = fs.Write(r.Context(), path.Clean(name), body, driver.WriteOptions{})
	}
	return err
}

func filesAt(in driver.Instance, name string) (driver.FileSystem, error) {
	if !path.IsAbs(name) {
		return nil, Fail(http.StatusBadRequest, "path must be absolute")
	}
	return Files(in)
}

// Events sends server-sent events. Its methods may be called concurrently.
type Events struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	gone bool
}

// NewEvents begins to answer with events.
func NewEvents(w http.ResponseWriter) *Events {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, ": keepalive\n\n")
	_ = http.NewResponseController(w).Flush()
	return &Events{w: w}
}

// Send sends an event, which may have a name. Each line of its data is a line of
// the stream. It does nothing after HangUp.
func (e *Events) Send(name, data string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	_, err := fmt.Fprintf(e.w, "%sdata: %s\n\n", name, strings.ReplaceAll(data, "\n", "\ndata: "))
	if err == nil {
		err = http.NewResponseController(e.w).Flush()
	}
	e.gone = err != nil
}

// HangUp ends the events. The answer must not be used afterwards.
func (e *Events) HangUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
}

// Forward forwards a request to a port of a sandbox. A request to connect gets
// a connection to the port.
func Forward(w http.ResponseWriter, r *http.Request, in driver.Instance, port uint16) error {
	dialer, ok := driver.As[driver.Dialer](in)
	if !ok {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "the sandboxes of the fake have no ports"}
	}
	if r.Method == http.MethodConnect {
		inner, err := dialer.Dial(r.Context(), port)
		if err != nil {
			return Fail(http.StatusBadGateway, "%v", err)
		}
		return relay(w, inner)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.Dial(ctx, port) }
	proxy := &httputil.ReverseProxy{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "sandbox", r.In.Host
	}}
	proxy.ServeHTTP(w, r)
	return nil
}

// relay connects the client of a request with a connection until both have ended.
func relay(w http.ResponseWriter, inner net.Conn) error {
	defer inner.Close()
	outer, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer outer.Close()
	_, _ = io.WriteString(outer, "HTTP/1.1 200 OK\r\n\r\n") // the client may have gone
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
	both.Go(func() { pass(inner, outer) })
	both.Go(func() { pass(outer, inner) })
	both.Wait()
	return nil
}
