package e2bapi

import (
	"context"
	"net/http"
	"time"
)

// flusher passes flushes on, unless they are held back, so that what is said in
// one go leaves in one go. Only the goroutine that writes may use it.
type flusher struct {
	http.ResponseWriter
	held bool
}

// gathering is for how long the first events of a command are held back. The
// guest says all of a short command at once, and each flush would wake the
// client up.
const gathering = time.Millisecond

type flusherKey struct{}

// withFlusher lets a handler hold back flushes.
func withFlusher(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := &flusher{ResponseWriter: w}
		next.ServeHTTP(f, r.WithContext(context.WithValue(r.Context(), flusherKey{}, f)))
	})
}

// flusherOf returns what withFlusher has given.
func flusherOf(ctx context.Context) *flusher { return ctx.Value(flusherKey{}).(*flusher) }

func (f *flusher) Flush() {
	if !f.held {
		_ = http.NewResponseController(f.ResponseWriter).Flush() // whoever writes next learns of it
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
