package server_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/server"
)

// Above its limit, a listener closes new connections, and accepts others after
// one is closed.
func TestLimit(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	first := <-accepted
	dial()
	second := <-accepted
	for range 100 {
		if _, err := io.ReadAll(dial()); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the third is not turned away: %v", err)
		}
	}
	_ = first.Close()
	_ = first.Close() // decrements the count once, not twice
	dial()
	third := <-accepted
	if _, err := io.ReadAll(dial()); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("it has more than it may: %v", err)
	}
	_, _ = second.Close(), third.Close()
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
