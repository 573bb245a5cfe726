//go:build bridge

package bridge

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"testing"
)

// faulty is a proxy in front of the bridge. After POST /fault?at=N&mode=MODE,
// the Nth request fails.
type faulty struct {
	to http.Handler

	mu    sync.Mutex
	mode  string
	at    int // counted down; the request that makes it 0 fails
	happy bool
}

// fault returns the URL of a proxy to a bridge.
func fault(t *testing.T, to string) string {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	server := httptest.NewServer(&faulty{to: proxy, happy: true})
	t.Cleanup(server.Close)
	return server.URL
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/fault" {
		f.set(w, r)
		return
	}
	f.mu.Lock()
	f.at--
	fails, mode := f.at == 0, f.mode
	if fails {
		f.happy = false
	}
	f.mu.Unlock()
	switch {
	case !fails:
		f.to.ServeHTTP(w, r)
		return
	case mode == "refused":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":"injected","code":"capacity_exceeded"}`)
		return
	case mode == "lost" && r.Header.Get("Upgrade") == "": // the request is executed, and its answer lost
		f.to.ServeHTTP(httptest.NewRecorder(), r)
	}
	panic(http.ErrAbortHandler) // closes the connection
}

// set sets which request fails next, and reports whether the last one did.
func (f *faulty) set(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = io.WriteString(w, strconv.FormatBool(!f.happy))
	f.at, _ = strconv.Atoi(r.URL.Query().Get("at"))
	f.mode, f.happy = r.URL.Query().Get("mode"), true
}
