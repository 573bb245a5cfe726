package server_test

import (
	"errors"
	"io"
	"net"
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
