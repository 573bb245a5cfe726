package selfhosted_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/provider/selfhosted"
	"github.com/atoll-run/atoll/sandbox"
)

// restarted is a machine whose program is started anew when the first request
// reaches it: the key that the request has is no longer accepted.
type restarted struct {
	address string

	mu   sync.Mutex
	key  string
	seen []string // keys of the requests
}

func (r *restarted) Dial(ctx context.Context, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", r.address)
}

func (r *restarted) Credentials(string) (key, provider string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.key, "gvisor"
}

func (r *restarted) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	r.seen = append(r.seen, key)
	if key == "old" {
		r.key = "new"
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	http.Error(w, `{"code":"exhausted","detail":"it reached the API"}`, http.StatusTooManyRequests)
}

// A request with the key of a program that has ended is repeated with that of the
// present one.
func TestKeyOfAnEarlierProgram(t *testing.T) {
	m := &restarted{key: "old"}
	server := httptest.NewServer(m)
	defer server.Close()
	m.address = server.Listener.Addr().String()
	p, err := selfhosted.New(selfhosted.Options{Dir: t.TempDir(), Machine: "m", Name: "laptop", Link: m})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.Attach(t.Context(), "sb-1")
	if sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("Attach = %v, want the answer %s of the API", err, sandbox.CodeExhausted)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) < 2 || !slices.Equal(m.seen[:2], []string{"old", "new"}) {
		t.Errorf("the requests had the keys %q, want old and new", m.seen)
	}
}
