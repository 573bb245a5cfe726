package daemon_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func fetch(t *testing.T, d *daemon.Daemon, path, token, id string) (*http.Response, string) {
	t.Helper()
	transport := d.Memory().Transport()
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://atoll"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if id != "" {
		r.Header.Set("X-Request-Id", id)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// Metrics contain no names. Callers who may not see all tenants may not read
// them.
func TestMetrics(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	s := create(t, c, sandbox.Spec{Name: "canary-box"})
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	_, _ = fetch(t, d, "/v1/canary-path", "", "")
	resp, text := fetch(t, d, "/metrics", "", "")
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	for _, want := range []string{
		`atoll_sandboxes{state="running"} 1`, `atoll_store_up 1`, "atoll_unsettled_actions ", `route="other",status="404"} 1`,
		`atoll_http_requests_total{route="POST /v1/sandboxes/{ref}/exec",status="200"} 1`, "go_goroutines", "process_resident_memory_bytes",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, "canary") {
		t.Error("a name is part of a metric")
	}
	for tenant, want := range map[string]int{"default": http.StatusOK, "acme": http.StatusForbidden} {
		k, err := c.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: []string{"read"}})
		if err != nil {
			t.Fatal(err)
		}
		if resp, _ := fetch(t, d, "/metrics", k.Token, ""); resp.StatusCode != want {
			t.Errorf("%s: %s", tenant, resp.Status)
		}
	}
	if resp, _ := fetch(t, d, "/metrics", "nonsense", ""); resp.StatusCode != http.StatusUnauthorized {
		t.Error(resp.Status)
	}
}

// While the database is unavailable, the daemon is alive but not ready, and its
// metrics show that.
func TestReadiness(t *testing.T) {
	address := storetest.Postgres(t)
	d := daemontest.New(t).Start(t, on(address))
	status := func(path string, want int) {
		t.Helper()
		if resp, text := fetch(t, d, path, "", ""); resp.StatusCode != want {
			t.Errorf("%s: %d %.200s", path, resp.StatusCode, text)
		}
	}
	status("/readyz", 200)
	restore := storetest.Refuse(t, address)
	status("/readyz", 503)
	status("/healthz", 200)
	if _, text := fetch(t, d, "/metrics", "", ""); !strings.Contains(text, "atoll_store_up 0") {
		t.Error("the metrics do not say so")
	}
	restore()
	status("/readyz", 200)
}

// A request can be found in the log by the id that its caller gets. Nothing
// that a caller sends gets into the log unchecked.
func TestRequestIDs(t *testing.T) {
	var logged bytes.Buffer
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) {
		o.Logger = slog.New(slog.NewJSONHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	resp, _ := fetch(t, d, "/v1/sandboxes", "", "my-id-1")
	if got := resp.Header.Get("X-Request-Id"); got != "my-id-1" {
		t.Errorf("my id became %q", got)
	}
	for _, bad := range []string{"", "a b", "x\u00e9", strings.Repeat("x", 65), `"}`} {
		if resp, _ := fetch(t, d, "/v1/sandboxes", "", bad); resp.Header.Get("X-Request-Id") == bad || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%q became %q", bad, resp.Header.Get("X-Request-Id"))
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(logged.String(), `"request":"my-id-1"`) {
		t.Errorf("it is not in the log: %s", logged.String())
	}
}
