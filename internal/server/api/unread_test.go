package api

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox/coding"
)

// busy is a repository whose state changes all the time.
type busy struct {
	Source
	ended chan struct{} // closed when nobody follows any more
}

func (b *busy) Watch(ctx context.Context, _, _ string) (iter.Seq2[coding.GitEvent, error], error) {
	return func(yield func(coding.GitEvent, error) bool) {
		defer close(b.ended)
		e := coding.GitEvent{IsRepo: true, Head: strings.Repeat("x", 64<<10)}
		for ; ctx.Err() == nil; e.Revision++ {
			if !yield(e, nil) {
				return
			}
		}
	}, nil
}

// The stream of a client that does not read ends, with its watch, although its
// connection stays open.
func TestStreamsOfClientsThatDoNotRead(t *testing.T) {
	was := writeDeadline
	writeDeadline = 100 * time.Millisecond
	t.Cleanup(func() { writeDeadline = was })
	b := &busy{ended: make(chan struct{})}
	a, served := New(Services{Source: b}, Options{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		a.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /v1/sandboxes/box/git/watch HTTP/1.1\r\nHost: x\r\n\r\n")
	<-served
	<-b.ended
}
