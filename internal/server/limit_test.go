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

// Beyond its limit a listener turns connections away, and lets others in once
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
	_ = first.Close() // gives one place back and not two
	dial()
	third := <-accepted
	if _, err := io.ReadAll(dial()); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("it has more than it may: %v", err)
	}
	_, _ = second.Close(), third.Close()
}

// A key that holds as many requests as it may is refused more, and takes nothing
// from another key. Its place is free again when a request ends.
func TestLimitPerKey(t *testing.T) {
	release := make(chan struct{})
	held := make(chan struct{}, server.MaxPerKey)
	l := tcp(t)
	start(t, l, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			held <- struct{}{}
			<-release
		}
	})
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	url := "http://" + l.Addr().String()
	ask := func(path, key string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key)
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	var open []*http.Response
	for range server.MaxPerKey {
		open = append(open, ask("/hold", "good"))
		<-held
	}
	refused := ask("/", "good")
	text, _ := io.ReadAll(refused.Body)
	_ = refused.Body.Close()
	if refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "exhausted") {
		t.Errorf("one too many: %d %v %s", refused.StatusCode, refused.Header, text)
	}
	if other := ask("/", "better"); other.StatusCode != http.StatusOK {
		t.Errorf("another key: %d", other.StatusCode)
	} else {
		_ = other.Body.Close()
	}
	close(release)
	for _, resp := range open {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	for again := ask("/", "good"); ; again = ask("/", "good") {
		_ = again.Body.Close()
		if again.StatusCode == http.StatusOK {
			break // the handlers have returned
		}
	}
}
