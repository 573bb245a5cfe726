package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// pipes is a listener in memory, so that a test can have a clock of its own.
type pipes struct {
	conns chan net.Conn
	over  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.over); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// dial starts a server that ends with the test, and connects to it.
func dial(t *testing.T, h http.Handler) net.Conn {
	t.Helper()
	p := pipes{make(chan net.Conn), make(chan struct{})}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(p) }()
	client, server := net.Pipe()
	p.conns <- server
	t.Cleanup(func() {
		client.Close()
		s.Close()
	})
	return client
}

// send sends a request with a body of 10 bytes in parts, with a pause before
// each of them, and returns the status of the answer. A server that gives up takes
// no more.
func send(t *testing.T, c net.Conn, method, path string, pause time.Duration, parts ...string) int {
	t.Helper()
	go func() {
		_, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n", method, path)
		for i := 0; err == nil && i < len(parts); i++ {
			time.Sleep(pause)
			_, err = io.WriteString(c, parts[i])
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// The deadline of a body must not bound the processing: a command runs much
// longer than its request takes to arrive.
func TestBodyTimeoutIsForTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Services{}, Options{})
		op := operation("slow", http.MethodPost, "/slow/{ref}", "Test", "Take longer than the body may")
		op.BodyReadTimeout = 10 * time.Millisecond
		huma.Register(a.huma, op, func(ctx context.Context, _ *stopInput) (*struct{}, error) {
			select {
			case <-ctx.Done():
				t.Error("the deadline of the body ended the request")
			case <-time.After(20 * op.BodyReadTimeout):
			}
			return nil, nil
		})
		if status := send(t, dial(t, a), http.MethodPost, "/slow/x", 0, "{}        "); status != http.StatusNoContent {
			t.Errorf("status %d", status)
		}
	})
}

// TestAttackSilentBody sends part of a body, or none of it, and keeps the
// connection open. Handlers must not wait for the rest forever, whether they
// read it or not. A slow body is read to its end, and processing it may take
// any time.
func TestAttackSilentBody(t *testing.T) {
	const rest = 10 * time.Second
	for name, tt := range map[string]struct {
		path string
		send []string // with pauses shorter than the deadline
		want int
	}{
		"read, nothing comes":     {"/read", nil, http.StatusRequestTimeout},
		"read, half of it comes":  {"/read", []string{"01234"}, http.StatusRequestTimeout},
		"not read, nothing comes": {"/", nil, http.StatusOK},
		"not read, half comes":    {"/", []string{"01234"}, http.StatusOK},
		"slow, but all of it":     {"/read", []string{"01", "23", "45", "67", "89"}, http.StatusOK},
		"long work":               {"/work", []string{"0123456789"}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer boundBody(w, r, rest)()
					status := http.StatusOK
					switch r.URL.Path {
					case "/read":
						if _, err := io.Copy(io.Discard, r.Body); err != nil {
							status = http.StatusRequestTimeout
						}
					case "/work":
						_, _ = io.Copy(io.Discard, r.Body)
						select {
						case <-r.Context().Done():
							t.Error("the deadline of the body ended the request")
						case <-time.After(3 * rest):
						}
					}
					w.WriteHeader(status)
				}))
				if status := send(t, c, http.MethodPut, tt.path, rest/2, tt.send...); status != tt.want {
					t.Errorf("status %d, want %d", status, tt.want)
				}
			})
		})
	}
}

// Reading a body after its handler has returned does not end the next request
// on the connection.
func TestBodyIsReadLate(t *testing.T) {
	var body io.Reader
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			defer boundBody(w, r, time.Minute)()
			body = r.Body
			return
		}
		_, _ = body.Read(make([]byte, 1))
		select {
		case <-r.Context().Done():
			t.Error("the body of an earlier request ended this one")
		case <-time.After(100 * time.Millisecond):
		}
	}))
	defer s.Close()
	first, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL, strings.NewReader("x"))
	second, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	for _, r := range []*http.Request{first, second} {
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
