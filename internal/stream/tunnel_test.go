package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// tunnels returns both ends of a tunnel over a real connection.
func tunnels(t *testing.T) (near, far *Tunnel) {
	t.Helper()
	made, over := make(chan *Tunnel), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		made <- NewTunnel(ws, "near")
		<-over
	}))
	ws, _, err := websocket.Dial(t.Context(), s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	near, far = NewTunnel(ws, "far"), <-made
	t.Cleanup(func() {
		near.Close()
		far.Close()
		close(over)
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return near, far
}

func TestTunnelHalfClose(t *testing.T) {
	near, far := tunnels(t)
	question := bytes.Repeat([]byte("0123456789abcde\n"), 100_000)
	go func() {
		near.Write(question)
		near.CloseWrite()
	}()
	if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, question) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if n, err := far.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("after the end: %d, %v", n, err)
	}
	if _, err := near.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing after the end: %v", err)
	}
	if n, err := near.Write(nil); n != 0 || err != nil {
		t.Errorf("writing nothing: %d, %v", n, err)
	}
	io.WriteString(far, "answer")
	far.Close()
	if got, err := io.ReadAll(near); err != nil || string(got) != "answer" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestTunnelAbort: an aborted tunnel does not look like a normal end.
func TestTunnelAbort(t *testing.T) {
	near, far := tunnels(t)
	io.WriteString(near, "half a")
	if _, err := io.ReadFull(far, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	near.Abort()
	if got, err := io.ReadAll(far); err == nil {
		t.Errorf("it ended well after %q", got)
	}
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading what was aborted: %v", err)
	}
}

func TestTunnelDeadline(t *testing.T) {
	near, _ := tunnels(t)
	near.SetDeadline(time.Now().Add(time.Hour))
	near.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading past the deadline: %v", err)
	}
}

// TestTunnelStalled: a writer without a reader blocks, and Close ends that.
func TestTunnelStalled(t *testing.T) {
	near, _ := tunnels(t)
	stuck := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(struct{ io.Writer }{near}, io.LimitReader(zeros{}, 1<<32))
		stuck <- n
	}()
	near.Close()
	if n := <-stuck; n >= 1<<32 {
		t.Errorf("%d bytes went where nobody reads", n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestTunnelForeign: the peer may be any WebSocket client.
func TestTunnelForeign(t *testing.T) {
	for name, message := range map[string]struct {
		kind websocket.MessageType
		data []byte
	}{
		"text":      {websocket.MessageText, []byte("hello")},
		"too large": {websocket.MessageBinary, make([]byte, maxTunnelMessage+1)},
	} {
		near, far := tunnels(t)
		go near.ws.Write(context.Background(), message.kind, message.data)
		if _, err := io.ReadAll(far); err == nil {
			t.Errorf("%s: it ends well", name)
		}
	}
}

// TestJoin: both directions are copied, each ends separately, and an abort is passed on.
func TestJoin(t *testing.T) {
	pair := func() (*net.TCPConn, *net.TCPConn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		a, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close(); b.Close() })
		return a.(*net.TCPConn), b.(*net.TCPConn)
	}
	join := func(ctx context.Context) (*net.TCPConn, *net.TCPConn, chan struct{}) {
		client, front := pair()
		back, program := pair()
		near, far := tunnels(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			go Join(ctx, front, near)
			Join(ctx, far, back)
		}()
		return client, program, done
	}
	client, program, done := join(t.Context())
	io.WriteString(client, "question")
	client.CloseWrite()
	if got, err := io.ReadAll(program); err != nil || string(got) != "question" {
		t.Fatalf("%q, %v", got, err)
	}
	io.WriteString(program, "answer")
	program.Close()
	if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
		t.Fatalf("%q, %v", got, err)
	}
	<-done

	client, program, done = join(t.Context())
	program.SetLinger(0)
	program.Close()
	if got, err := io.ReadAll(client); err == nil {
		t.Errorf("a reset looks like an end after %q", got)
	}
	<-done

	ctx, cancel := context.WithCancel(t.Context())
	client, _, done = join(ctx)
	cancel()
	if got, err := io.ReadAll(client); err == nil {
		t.Errorf("a canceled connection ends well after %q", got)
	}
	<-done
}
