package api

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

type anySandbox struct{}

func (anySandbox) Open(context.Context, string) (Sandbox, error) { return nil, nil }

// TestAttackSilentStream opens a stream for a command but sends no start
// message. It gets an error and is disconnected.
func TestAttackSilentStream(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(New(Services{Processes: anySandbox{}}, Options{}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 6*startTimeout)
	defer cancel()
	began := time.Now()
	ws, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(s.URL, "http")+"/v1/sandboxes/x/exec", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	said := ""
	for {
		_, text, err := ws.Read(ctx)
		if err != nil {
			break
		}
		said += string(text)
	}
	if ctx.Err() != nil {
		t.Fatal("the stream stays open")
	}
	if time.Since(began) < startTimeout || !strings.Contains(said, "first message must be a start") {
		t.Errorf("after %v it is cut off with %q", time.Since(began), said)
	}
}
