package e2bapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Held-back flushes happen when they are released, not before.
func TestFlusher(t *testing.T) {
	w := httptest.NewRecorder()
	withFlusher(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := flusherOf(r.Context())
		below := f.ResponseWriter.(*httptest.ResponseRecorder)
		f.hold()
		w.(http.Flusher).Flush()
		if below.Flushed {
			t.Error("it was flushed while it was held")
		}
		f.release()
		if !below.Flushed {
			t.Error("it was not flushed when it was released")
		}
		below.Flushed = false
		f.release()
		if below.Flushed {
			t.Error("it was flushed for nothing")
		}
		if w.(http.Flusher).Flush(); !below.Flushed {
			t.Error("it is not flushed any more")
		}
	})).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
}
