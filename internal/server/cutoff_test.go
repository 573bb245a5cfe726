package server

import (
	"context"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// slowWriter takes a second to set a deadline.
type slowWriter struct {
	*httptest.ResponseRecorder
	ended bool // the handler
	late  bool // a deadline was set after its end
}

func (w *slowWriter) SetReadDeadline(time.Time) error {
	time.Sleep(time.Second)
	w.late = w.late || w.ended
	return nil
}

func (w *slowWriter) SetWriteDeadline(t time.Time) error { return w.SetReadDeadline(t) }

// A key can end at the same time as a handler. The writer of the request must
// not be used after the handler: HTTP/2 panics then, and HTTP/1 would end the
// connection's next request.
func TestCutOffEndsWithTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder()}
		done := CutOff(ctx, w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
		cancel()
		synctest.Wait() // the deadline is being set
		done()
		w.ended = true
		time.Sleep(time.Minute)
		if w.late {
			t.Error("the writer was used after the handler")
		}
	})
}
