package server_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/server"
)

// Above its limit, a listener closes the connection that has waited longest for
// a request.
func TestLimit(t *testing.T) {
	inner := tcp(t)
	l := server.Limit(inner, 2)
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	pair := func() (near, far net.Conn) {
		t.Helper()
		near = dial(t, inner)
		return near, <-accepted
	}
	first, farFirst := pair()
	second, farSecond := pair()
	third, farThird := pair()
	ended(t, first)
	_ = farFirst.Close() // it does not make room again
	_, farFourth := pair()
	ended(t, second)
	_ = farThird.Close()
	_ = farThird.Close() // decrements the count once, not twice
	ended(t, third)
	_, farFifth := pair()
	sixth, farSixth := pair()
	if _, err := farFourth.Write([]byte("x")); err == nil {
		t.Error("three connections are open")
	}
	if _, err := farSixth.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	_ = farSecond.Close()
	_ = farFourth.Close()
	_ = farFifth.Close()
	_ = farSixth.Close()
	_ = sixth.Close()
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ended waits until the other end closes a connection.
func ended(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
}

// TestAttackIdleConnections fills the listener with connections of clients
// without a key, who send nothing, half a request, or a whole one that needs no
// key. Requests with a key are answered all the same, and those that run are not
// interrupted.
func TestAttackIdleConnections(t *testing.T) {
	const most = 8
	for name, flood := range map[string]string{
		"nothing":           "",
		"half a header":     "GET / HTTP/1.1\r\nHost: localh",
		"a health check":    "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"a request refused": "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n",
		"a TLS hello":       "\x16\x03\x01",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHolder()
			l := tcp(t)
			start(t, server.Limit(l, most), h.ServeHTTP)
			key := map[string]string{"Authorization": "Bearer good"}
			long := dial(t, l)
			fmt.Fprint(long, "GET /hold HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer good\r\n\r\n")
			<-h.held
			for range 3 {
				for range 2 * most {
					fmt.Fprint(dial(t, l), flood)
				}
				c := &http.Client{Transport: &http.Transport{}}
				if status, _ := get(t, c, "http://"+l.Addr().String()+"/", key); status != http.StatusOK {
					t.Fatalf("with a key: %d", status)
				}
				c.CloseIdleConnections()
			}
			h.release <- struct{}{}
			answer, err := http.ReadResponse(bufio.NewReader(long), nil)
			if err != nil {
				t.Fatalf("the request that ran: %v", err)
			}
			defer answer.Body.Close()
			if _, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
				t.Errorf("the request that ran: %d, %v", answer.StatusCode, err)
			}
		})
	}
}

// A caller with the maximum number of requests is refused more, and does not
// affect others. It can send another when a request ends.
func TestLimitPerKey(t *testing.T) {
	h := newHolder()
	l := tcp(t)
	start(t, l, h.ServeHTTP)
	key := func(name string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+name) }
	}
	h.fill(t, l, key("good"), key("better"))
}

// The same applies if a handler authenticates requests itself, and to the ports
// of sandboxes, by host name.
func TestLimitPerShare(t *testing.T) {
	h := newHolder()
	l := tcp(t)
	serve(t, l, server.New(server.Config{
		Handler: h, Ports: portsOf{h}, Share: func(r *http.Request) string { return r.Header.Get("X-Who") },
	}))
	t.Run("share", func(t *testing.T) {
		h.fill(t, l, func(r *http.Request) { r.Header.Set("X-Who", "one") }, func(r *http.Request) { r.Header.Set("X-Who", "two") })
	})
	t.Run("port", func(t *testing.T) {
		h.fill(t, l, func(r *http.Request) { r.Host = "1-a.ports" }, func(r *http.Request) { r.Host = "2-a.ports" })
	})
}

// portsOf answers requests for every name below "ports".
type portsOf struct{ http.Handler }

func (portsOf) Match(r *http.Request) bool { return strings.HasSuffix(r.Host, ".ports") }

// holder keeps requests for /hold until they are released.
type holder struct {
	held    chan struct{}
	release chan struct{}
}

func newHolder() *holder {
	return &holder{held: make(chan struct{}, server.MaxPerKey), release: make(chan struct{}, server.MaxPerKey)}
}

func (h *holder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/hold" {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		h.held <- struct{}{}
		select {
		case <-h.release:
		case <-r.Context().Done():
		}
	}
}

// fill makes one caller hold the maximum number of requests.
func (h *holder) fill(t *testing.T, l net.Listener, one, other func(*http.Request)) {
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	ask := func(path string, as func(*http.Request)) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		as(r)
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	var open []*http.Response
	for range server.MaxPerKey {
		open = append(open, ask("/hold", one))
		<-h.held
	}
	refused := ask("/", one)
	text, _ := io.ReadAll(refused.Body)
	_ = refused.Body.Close()
	if refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "exhausted") {
		t.Errorf("one too many: %d %v %s", refused.StatusCode, refused.Header, text)
	}
	if other := ask("/", other); other.StatusCode != http.StatusOK {
		t.Errorf("another caller: %d", other.StatusCode)
	} else {
		_ = other.Body.Close()
	}
	for range open {
		h.release <- struct{}{}
	}
	for _, resp := range open {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	for again := ask("/", one); ; again = ask("/", one) {
		_ = again.Body.Close()
		if again.StatusCode == http.StatusOK {
			break // the handlers have returned
		}
	}
}
