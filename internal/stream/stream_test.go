package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns two WebSockets that are connected to each other.
func pair(t testing.TB) (near, far *websocket.Conn) {
	t.Helper()
	accepted := make(chan *websocket.Conn)
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
		<-release
	}))
	near, resp, err := websocket.Dial(context.Background(), s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	far = <-accepted
	t.Cleanup(func() {
		_, _ = near.CloseNow(), far.CloseNow()
		close(release)
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return near, far
}

// links returns two running links, and the messages that each received.
func links(t testing.TB) (a, b *Link, toB chan Message) {
	t.Helper()
	near, far := pair(t)
	a, b = New(context.Background(), near), New(context.Background(), far)
	toB = make(chan Message, 100)
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.Run(func(Message) {}) })
	wg.Go(func() { _ = b.Run(func(m Message) { toB <- m }) })
	t.Cleanup(func() {
		a.Abort()
		b.Abort()
		wg.Wait()
	})
	return a, b, toB
}

func TestManyWindows(t *testing.T) {
	a, b, _ := links(t)
	sent := bytes.Repeat([]byte("0123456789"), Window/2)
	go func() {
		w := a.Writer(Stdout)
		_, _ = w.Write(sent)
		_ = w.Close()
	}()
	got, err := io.ReadAll(b.Reader(Stdout))
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
	}
}

// An unread channel blocks its writer after a window, and nothing else.
func TestBackPressure(t *testing.T) {
	a, b, toB := links(t)
	stuck := make(chan int, 1)
	go func() {
		n, _ := a.Writer(Stdout).Write(make([]byte, 10*Window))
		stuck <- n
	}()
	go func() { _, _ = io.WriteString(a.Writer(Stderr), "still here") }()
	buf := make([]byte, 10)
	if _, err := io.ReadFull(b.Reader(Stderr), buf); err != nil || string(buf) != "still here" {
		t.Errorf("%q %v", buf, err)
	}
	if err := a.Send(t.Context(), Message{Type: "signal", Signal: 9}); err != nil {
		t.Error(err)
	}
	if m := <-toB; m.Signal != 9 {
		t.Errorf("%+v", m)
	}
	b.in[Stdout].mu.Lock()
	held := len(b.in[Stdout].buf)
	b.in[Stdout].mu.Unlock()
	if held > Window {
		t.Errorf("%d bytes are held", held)
	}
	a.Abort()
	if n := <-stuck; n > Window {
		t.Errorf("%d bytes went out", n)
	}
}

func TestEverythingEndsWithTheLink(t *testing.T) {
	a, b, _ := links(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := b.Reader(Stdin).Read(make([]byte, 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("read: %v", err)
		}
	})
	wg.Go(func() {
		if _, err := b.Writer(Stdout).Write(make([]byte, 3*Window)); !errors.Is(err, ErrClosed) {
			t.Errorf("write: %v", err)
		}
	})
	_ = a.Close()
	wg.Wait()
	if _, err := a.Writer(Stdin).Write([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
}

// Data that arrived before the end can still be read.
func TestNothingIsLostAtTheEnd(t *testing.T) {
	a, b, _ := links(t)
	if _, err := io.WriteString(a.Writer(Stdout), "last words"); err != nil {
		t.Fatal(err)
	}
	_ = a.Writer(Stdout).Close()
	_ = a.Close()
	if got, err := io.ReadAll(b.Reader(Stdout)); err != nil || string(got) != "last words" {
		t.Errorf("%q %v", got, err)
	}
}

// A peer that violates the protocol is disconnected.
func TestBrokenProtocol(t *testing.T) {
	tests := map[string][]any{
		"no channel":          {[]byte{}},
		"an unknown channel":  {[]byte{9, 'x'}},
		"text that is none":   {"{"},
		"an unknown eof":      {`{"type":"eof","channel":7}`},
		"a negative channel":  {`{"type":"eof","channel":-1}`},
		"an ack for nothing":  {`{"type":"ack","channel":1,"n":1}`},
		"a negative ack":      {`{"type":"ack","channel":1,"n":-5}`},
		"more than a window":  {make([]byte, Window+2)},
		"data after the end":  {`{"type":"eof","channel":0}`, []byte{0, 'x'}},
		"more than a message": {strings.Repeat("x", MaxMessage+1)},
	}
	for name, frames := range tests {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			l := New(context.Background(), far)
			ended := make(chan error, 1)
			go func() { ended <- l.Run(func(Message) {}) }()
			go func() {
				for _, f := range frames {
					switch f := f.(type) {
					case []byte:
						_ = near.Write(context.Background(), websocket.MessageBinary, f)
					case string:
						_ = near.Write(context.Background(), websocket.MessageText, []byte(f))
					}
				}
				_, _, _ = near.Read(context.Background()) // answers the close
			}()
			if err := <-ended; err == nil {
				t.Error("nobody minded")
			}
			if _, err := l.Reader(Stdout).Read(make([]byte, 1)); !errors.Is(err, ErrClosed) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func BenchmarkThroughput(b *testing.B) {
	from, to, _ := links(b)
	chunk := make([]byte, 64<<10)
	b.SetBytes(int64(len(chunk)))
	go func() {
		for range b.N {
			if _, err := from.Writer(Stdout).Write(chunk); err != nil {
				return
			}
		}
		_ = from.Writer(Stdout).Close()
	}()
	if n, err := io.Copy(io.Discard, to.Reader(Stdout)); err != nil || n != int64(b.N*len(chunk)) {
		b.Fatal(n, err)
	}
}
