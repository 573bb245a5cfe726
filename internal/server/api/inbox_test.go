package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// slowProcess is a background command that accepts nothing before it is
// released. Its log is what it gets, in order.
type slowProcess struct {
	driver.Process
	released, closed chan struct{}
	mu               sync.Mutex
	log              []string
}

func newSlowProcess() *slowProcess {
	return &slowProcess{released: make(chan struct{}), closed: make(chan struct{})}
}

func (p *slowProcess) note(what string) error {
	select {
	case <-p.released:
	case <-p.closed:
		return io.ErrClosedPipe
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, what)
	return nil
}

func (p *slowProcess) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, ", ")
}

func (p *slowProcess) Info() sandbox.ProcessInfo {
	return sandbox.ProcessInfo{ID: "p1", Background: true, Running: true}
}
func (p *slowProcess) Stdin() io.WriteCloser                 { return slowInput{p} }
func (p *slowProcess) Stdout() io.Reader                     { return p.output() }
func (p *slowProcess) Stderr() io.Reader                     { return p.output() }
func (p *slowProcess) Signal(_ context.Context, n int) error { return p.note(fmt.Sprint("signal ", n)) }

func (p *slowProcess) Resize(_ context.Context, s sandbox.WindowSize) error {
	return p.note(fmt.Sprint("resize ", s.Cols))
}

func (p *slowProcess) Wait(ctx context.Context) (sandbox.Exit, error) {
	<-ctx.Done()
	return sandbox.Exit{}, ctx.Err()
}

func (p *slowProcess) Close() error {
	close(p.closed)
	return nil
}

// output returns a stream that ends when the process is closed.
func (p *slowProcess) output() io.Reader {
	r, w := io.Pipe()
	go func() {
		<-p.closed
		w.CloseWithError(errors.New("closed"))
	}()
	return r
}

type slowInput struct{ *slowProcess }

func (p slowInput) Write(b []byte) (int, error) { return len(b), p.note(string(b)) }
func (p slowInput) Close() error                { return p.note("end") }

// pipeListener connects clients and a server in one bubble of synctest.
type pipeListener struct {
	net.Listener
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	l.conns <- far
	return near, nil
}

// carried connects a client to a process, and returns what waits for the end of
// the connection at the server.
func carried(t *testing.T, p driver.Process) (client *stream.Link, ended func()) {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	over := make(chan struct{})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(over)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		new(API).carry(r.Context(), stream.New(r.Context(), ws), p)
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	transport := &http.Transport{DialContext: l.dial}
	ws, resp, err := websocket.Dial(t.Context(), "ws://daemon/", &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	client = stream.New(t.Context(), ws)
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_ = client.Run(func(stream.Message) {})
	}()
	return client, func() {
		<-over
		client.Abort()
		<-ran
		close(l.done)
		<-served
		transport.CloseIdleConnections()
	}
}

// Input, signals and sizes that a client sends to a background command just
// before it closes the connection reach the command, in that order.
func TestLastInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSlowProcess()
		client, ended := carried(t, p)
		send := func(m stream.Message) {
			if err := client.Send(t.Context(), m); err != nil {
				t.Error(err)
			}
		}
		input := client.Writer(stream.Stdin)
		_, _ = io.WriteString(input, "first\n")
		send(stream.Message{Type: "resize", Size: &sandbox.WindowSize{Cols: 100}})
		_, _ = io.WriteString(input, "second\n")
		_ = input.Close()
		send(stream.Message{Type: "signal", Signal: 15})
		_ = client.Close()
		synctest.Wait() // all has arrived, and nothing is accepted yet
		close(p.released)
		ended()
		<-p.closed
		got := p.String()
		for _, pair := range [][2]string{{"first", "second"}, {"resize 100", "second"}, {"second", "end"}, {"resize 100", "signal 15"}} {
			if a, b := strings.Index(got, pair[0]), strings.Index(got, pair[1]); a < 0 || b < a {
				t.Errorf("%q does not come before %q in %q", pair[0], pair[1], got)
			}
		}
	})
}

// A command that reads no input does not keep a closed connection for long.
func TestInputThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSlowProcess()
		client, ended := carried(t, p)
		_, _ = io.WriteString(client.Writer(stream.Stdin), "never read")
		_ = client.Close()
		ended()
		<-p.closed
		if got := p.String(); got != "" {
			t.Errorf("it got %q", got)
		}
	})
}

// Input waits for a request that arrived before it, and for no other.
func TestInputDoesNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q inbox
		p := newSlowProcess()
		q.add(request{stream.Message{Type: "resize", Size: &sandbox.WindowSize{Cols: 100}}, 3})
		q.close()
		var got strings.Builder
		fed := make(chan bool)
		go func() { fed <- q.feed(&got, strings.NewReader("oneTWO")) }()
		go q.obey(t.Context(), p, nil)
		synctest.Wait()
		if got.String() != "one" {
			t.Errorf("before the request is carried out: %q", got.String())
		}
		close(p.released)
		if end := <-fed; !end || got.String() != "oneTWO" || p.String() != "resize 100" {
			t.Errorf("%v %q %q", end, got.String(), p.String())
		}
	})
}
