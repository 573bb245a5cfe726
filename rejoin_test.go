package atoll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// oneCommand is a daemon with a sandbox whose commands run until run returns.
func oneCommand(t *testing.T, run func(*stream.Link)) *http.ServeMux {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes/one", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"id":"sb-one","name":"one","state":"running"}`)
	})
	mux.HandleFunc("GET /v1/sandboxes/{ref}/exec", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		link := stream.New(t.Context(), ws)
		defer link.Abort()
		if _, err := link.Receive(t.Context()); err != nil {
			t.Error(err)
		}
		exit := sandbox.Exit{Reason: sandbox.ReasonExited}
		_ = link.Send(t.Context(), stream.Message{Type: "started", Process: &sandbox.ProcessInfo{ID: "p"}, At: &stream.Position{}})
		run(link)
		_ = link.Send(t.Context(), stream.Message{Type: "exit", Exit: &exit})
	})
	return mux
}

// openOne opens the sandbox of that daemon.
func openOne(t *testing.T, mux *http.ServeMux, transport *http.Transport) *atoll.Sandbox {
	t.Helper()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	opts := atoll.Options{Host: s.URL, Key: "k"}
	if transport != nil {
		opts.Transport = transport
	}
	c, err := atoll.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	sb, err := c.Get(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// If the connection is lost after the command has ended, and the daemon refuses
// to continue the output, a reader gets that error and not the error of the
// connection.
func TestOutputBreaksOff(t *testing.T) {
	mux := oneCommand(t, func(link *stream.Link) {
		_, _ = io.WriteString(link.Writer(stream.Stdout), "half")
	})
	mux.HandleFunc("GET /v1/sandboxes/{ref}/processes/p/attach", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"code":"exhausted","detail":"the disk is full","status":429,"title":"exhausted"}`)
	})
	sb := openOne(t, mux, nil)
	p, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"x"}, Hold: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	text, err := io.ReadAll(p.Stdout())
	if string(text) != "half" || sandbox.CodeOf(err) != sandbox.CodeExhausted || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("read %q, %v, want half and why there is no more", text, err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Reason != sandbox.ReasonExited {
		t.Errorf("the end of the command is %v, %v", exit, err)
	}
}

// held is a connection whose writes wait, after armed was set, and then fail.
type held struct {
	net.Conn
	armed            *atomic.Bool
	writing, release chan struct{}
}

func (c held) Write(b []byte) (int, error) {
	if !c.armed.Load() {
		return c.Conn.Write(b)
	}
	select {
	case c.writing <- struct{}{}:
	default:
	}
	<-c.release
	c.Close()
	return 0, net.ErrClosed
}

// The daemon closes the connection when the command has ended. A signal that is
// sent at this moment finds no command; this does not mean that the daemon does
// not answer.
func TestSignalAtTheEnd(t *testing.T) {
	end := make(chan struct{})
	mux := oneCommand(t, func(*stream.Link) { <-end })
	var armed atomic.Bool
	writing, release := make(chan struct{}, 1), make(chan struct{})
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return held{conn, &armed, writing, release}, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	sb := openOne(t, mux, transport)
	p, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	armed.Store(true)
	signaled := make(chan error, 1)
	go func() { signaled <- p.Signal(t.Context(), 15) }()
	<-writing
	close(end)
	if exit, err := p.Wait(t.Context()); err != nil || exit.Reason != sandbox.ReasonExited {
		t.Errorf("the end of the command is %v, %v", exit, err)
	}
	close(release)
	if err := <-signaled; sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("the signal at the end: %v, want %s", err, sandbox.CodeNotFound)
	}
}

// A download that breaks off says so, and not that the daemon does not answer.
func TestDownloadBreaksOff(t *testing.T) {
	mux := oneCommand(t, func(*stream.Link) {})
	mux.HandleFunc("GET /v1/sandboxes/{ref}/files/archive", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "a part")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	sb := openOne(t, mux, nil)
	var got bytes.Buffer
	err := sb.Files().Export(t.Context(), "/", &got)
	if e := new(sandbox.Error); !errors.As(err, &e) || e.Code != sandbox.CodeUnavailable || e.Message != "the answer broke off" || got.String() != "a part" {
		t.Errorf("%q, %v", got.String(), err)
	}
}
