package daemon_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// With too little free memory, creating a sandbox is refused with a retry time.
// A client retries, and succeeds when there is memory. Existing sandboxes can
// be used and removed meanwhile.
func TestLittleMemory(t *testing.T) {
	var free atomic.Int64
	free.Store(20 << 30)
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) {
		o.SetMemory(func() (int64, int64) { return free.Load(), 24 << 30 })
	})
	c := daemontest.Client(t, d)
	sb := create(t, c, sandbox.Spec{Name: "one"})
	free.Store(1 << 30)
	post := func() *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://daemon/v1/sandboxes", strings.NewReader(`{"name":"two"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		transport := d.Memory().Transport()
		defer transport.CloseIdleConnections()
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	refused := post()
	if refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" {
		t.Fatalf("with 1 GiB left: %s, %v", refused.Status, refused.Header)
	}
	if _, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}}, atoll.RunOptions{}); err != nil {
		t.Error(err)
	}
	made := make(chan error, 1)
	go func() {
		_, err := c.Create(t.Context(), sandbox.Spec{Name: "three"}, atoll.CreateOptions{})
		made <- err
	}()
	free.Store(20 << 30)
	if err := <-made; err != nil {
		t.Errorf("once there is memory: %v", err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
