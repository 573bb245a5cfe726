package atoll_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// If the connection is lost after the command has ended, and the daemon refuses
// to continue the output, a reader gets that error and not the error of the
// connection.
func TestOutputBreaksOff(t *testing.T) {
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
		_, _ = io.WriteString(link.Writer(stream.Stdout), "half")
		_ = link.Send(t.Context(), stream.Message{Type: "exit", Exit: &exit})
	})
	mux.HandleFunc("GET /v1/sandboxes/{ref}/processes/p/attach", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"code":"exhausted","detail":"the disk is full","status":429,"title":"exhausted"}`)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	c, err := atoll.New(atoll.Options{Host: s.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	sb, err := c.Get(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
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
