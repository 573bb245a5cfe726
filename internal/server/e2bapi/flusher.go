package e2bapi

import (
	"context"
	"net/http"
	"time"
)

// flusher passes on flushes, unless they are held back, so that several writes
// leave at once. Only the writing goroutine may use it.
type flusher struct {
	http.ResponseWriter
	held bool
}

// gathering is how long the first events of a command are held back. The guest
// reports a short command at once, and each flush would wake the client.
const gathering = time.Millisecond

type flusherKey struct{}

// withFlusher lets a handler hold back flushes.
func withFlusher(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := &flusher{ResponseWriter: w}
		next.ServeHTTP(f, r.WithContext(context.WithValue(r.Context(), flusherKey{}, f)))
	})
}

// flusherOf returns the flusher of withFlusher.
func flusherOf(ctx context.Context) *flusher { return ctx.Value(flusherKey{}).(*flusher) }

func (f *flusher) Flush() {
	if !f.held {
		_ = http.NewResponseController(f.ResponseWriter).Flush() // the next write returns the error
	}
}

func (f *flusher) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func (f *flusher) hold() { f.held = true }

func (f *flusher) release() {
	if f.held {
		f.held = false
		f.Flush()
	}
}
