package daemon_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// collector receives what a daemon sends by OTLP.
type collector struct {
	addr string
	// answer, if set, answers the n-th request for a path itself.
	answer func(path string, n int, w http.ResponseWriter, r *http.Request) bool

	mu      sync.Mutex
	changed chan struct{} // closed and made anew at each request
	asked   map[string]int
	spans   []*trace.Span
	logs    []*logs.LogRecord
	names   []string // service names of resources
}

// newCollector returns a collector that does not listen yet. Its address is
// known, but does not accept connections.
func newCollector(t *testing.T) *collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &collector{addr: l.Addr().String(), changed: make(chan struct{}), asked: map[string]int{}}
}

func (c *collector) url() string { return "http://" + c.addr }

func (c *collector) listen(t *testing.T) *collector {
	t.Helper()
	l, err := net.Listen("tcp", c.addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: c}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	text, err := io.ReadAll(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.asked[r.URL.Path]++
	n := c.asked[r.URL.Path]
	c.mu.Unlock()
	if c.answer == nil || !c.answer(r.URL.Path, n, w, r) {
		c.take(r.URL.Path, text)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *collector) take(path string, text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var spans coltrace.ExportTraceServiceRequest
	var records collogs.ExportLogsServiceRequest
	switch {
	case path == "/v1/traces" && proto.Unmarshal(text, &spans) == nil:
		for _, r := range spans.ResourceSpans {
			c.names = append(c.names, value(r.Resource.Attributes, "service.name"))
			for _, s := range r.ScopeSpans {
				c.spans = append(c.spans, s.Spans...)
			}
		}
	case path == "/v1/logs" && proto.Unmarshal(text, &records) == nil:
		for _, r := range records.ResourceLogs {
			c.names = append(c.names, value(r.Resource.Attributes, "service.name"))
			for _, s := range r.ScopeLogs {
				c.logs = append(c.logs, s.LogRecords...)
			}
		}
	}
}

// await waits until the received data is as expected.
func (c *collector) await(t *testing.T, want func() bool) {
	t.Helper()
	for {
		c.mu.Lock()
		changed, done := c.changed, want()
		c.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatal("it never came")
		}
	}
}

func value(attrs []*common.KeyValue, key string) string {
	for _, a := range attrs {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

func number(attrs []*common.KeyValue, key string) int64 {
	for _, a := range attrs {
		if a.Key == key {
			return a.Value.GetIntValue()
		}
	}
	return 0
}

const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
)

// traced returns a client that sends a trace with its requests.
func traced(t *testing.T, d *daemon.Daemon) *atoll.Client {
	t.Helper()
	c, err := atoll.New(atoll.Options{Transport: d.Memory().Transport(), Propagate: func(_ context.Context, h http.Header) {
		h.Set("Traceparent", "00-"+callersTrace+"-"+callersSpan+"-01")
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A trace continues from its caller to the driver, and contains no command,
// value, path or error text.
func TestTraces(t *testing.T) {
	col := newCollector(t).listen(t)
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Telemetry = col.url() })
	c := traced(t, d)
	const canary = "canary-5d1"
	s, err := c.Create(t.Context(), sandbox.Spec{Name: "one", Env: map[string]string{"A": canary}, Labels: map[string]string{canary: canary}}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "true " + canary, Env: map[string]string{"B": canary}}, atoll.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Files().Stat(t.Context(), "/"+canary); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Fatal(err)
	}
	_, _ = fetch(t, d, "/v1/"+canary+"?"+canary, canary, "")
	_, _ = fetch(t, d, "/v1/"+canary, "", "")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range col.spans {
		if strings.Contains(s.String(), canary) {
			t.Errorf("a span holds it: %s", s)
		}
	}
	byID := map[string]*trace.Span{}
	for _, s := range col.spans {
		byID[string(s.SpanId)] = s
	}
	// path returns the path from the caller to a span.
	var path func(s *trace.Span) string
	path = func(s *trace.Span) string {
		up := ""
		if p := byID[string(s.ParentSpanId)]; p != nil {
			up = path(p) + " > "
		} else if hex.EncodeToString(s.ParentSpanId) == callersSpan {
			up = "caller > "
		}
		return up + s.Name
	}
	paths := map[string]*trace.Span{}
	for _, s := range col.spans {
		paths[path(s)] = s
	}
	for _, want := range []string{
		"caller > POST /v1/sandboxes",
		"caller > POST /v1/sandboxes > control sandbox.create > record sandbox.create",
		"caller > POST /v1/sandboxes > control sandbox.create > driver sandbox.create",
		"caller > POST /v1/sandboxes/{ref}/exec > control process.exec > record process.exec",
		"caller > POST /v1/sandboxes/{ref}/exec > control process.exec > driver process.exec",
		"caller > GET /v1/sandboxes/{ref}/files/stat > control files.stat > driver files.stat",
		"GET", // of what there is not
	} {
		if paths[want] == nil {
			t.Errorf("no %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%v", slices.Collect(func(yield func(string) bool) {
			for p := range paths {
				if !yield(p) {
					return
				}
			}
		}))
		return
	}
	run := paths["caller > POST /v1/sandboxes/{ref}/exec > control process.exec > driver process.exec"]
	if hex.EncodeToString(run.TraceId) != callersTrace || value(run.Attributes, "atoll.sandbox.id") != string(s.ID()) {
		t.Errorf("%v", run)
	}
	missing := paths["caller > GET /v1/sandboxes/{ref}/files/stat > control files.stat > driver files.stat"]
	if value(missing.Attributes, "error.type") != "not_found" || missing.Status.Message != "not_found" {
		t.Errorf("%v", missing)
	}
	if !slices.Contains(col.names, "atoll") {
		t.Errorf("they are of %v", col.names)
	}
}

// Records name their request and trace.
func TestEventsNameRequests(t *testing.T) {
	d := daemontest.New(t).Start(t, nil) // no collector: ids of callers are still accepted
	s := create(t, traced(t, d), sandbox.Spec{Name: "one"})
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for e, err := range daemontest.Client(t, d).Events(t.Context(), sandbox.EventQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Trace != callersTrace || e.Request == "" {
			t.Errorf("%+v", e)
		}
		if other := ids[e.Op]; other != "" && other != e.Request {
			t.Errorf("%s belongs to %s and %s", e.Op, other, e.Request)
		}
		ids[e.Op] = e.Request
	}
	if len(ids) != 2 || ids["sandbox.create"] == ids["process.exec"] {
		t.Errorf("%v", ids)
	}
}

// A collector is unavailable, busy and slow: no request waits for it, and every
// event arrives, in order, whichever daemon sends it.
func TestEventsReachCollector(t *testing.T) {
	col := newCollector(t)
	m := daemontest.New(t)
	with := func(o *daemon.Options) { o.Telemetry = col.url() }
	first := m.Start(t, with)
	c := daemontest.Client(t, first)
	create(t, c, sandbox.Spec{Name: "one"}) // without a collector
	stuck := make(chan struct{})
	col.answer = func(path string, n int, w http.ResponseWriter, r *http.Request) bool {
		switch {
		case path != "/v1/logs":
			return false
		case n == 1:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		case n == 2:
			w.WriteHeader(http.StatusTooManyRequests)
		case n == 3:
			select { // it hangs
			case <-stuck:
			case <-r.Context().Done():
			}
			w.WriteHeader(http.StatusGatewayTimeout)
		default:
			return false
		}
		return true
	}
	col.listen(t)
	seqs := func() (all []int64) {
		for _, l := range col.logs {
			if value(l.Attributes, "atoll.tenant") == "default" {
				all = append(all, number(l.Attributes, "atoll.seq"))
			}
		}
		return all
	}
	col.await(t, func() bool { return col.asked["/v1/logs"] >= 2 })
	s := create(t, c, sandbox.Spec{Name: "two"})
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	close(stuck)
	col.await(t, func() bool { return len(seqs()) >= 6 })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again := daemontest.Client(t, m.Start(t, with))
	create(t, again, sandbox.Spec{Name: "three"})
	want := lastSeq(t, again)
	col.await(t, func() bool { all := seqs(); return all[len(all)-1] >= want })
	col.mu.Lock()
	defer col.mu.Unlock()
	next := int64(1)
	for _, seq := range seqs() {
		if seq > next {
			t.Fatalf("they came as %v", seqs())
		}
		next = max(next, seq+1)
	}
	if last := seqs()[len(seqs())-2:]; last[0] != want-1 || len(seqs()) >= 2*int(want) {
		t.Errorf("the second daemon sent all again: %v", seqs())
	}
	if l := col.logs[0]; l.EventName != "atoll.attempted" || value(l.Attributes, "atoll.op") != "sandbox.create" || l.TimeUnixNano == 0 || value(l.Attributes, "atoll.sandbox.name") != "one" {
		t.Errorf("%v", l)
	}
}

func lastSeq(t *testing.T, c *atoll.Client) (seq int64) {
	t.Helper()
	for e, err := range c.Events(t.Context(), sandbox.EventQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		seq = e.Seq
	}
	return seq
}

// A partly accepted batch is not sent again, and a collector that never answers
// does not block the end of the daemon.
func TestCollectorRejects(t *testing.T) {
	col := newCollector(t)
	text, err := proto.Marshal(&collogs.ExportLogsServiceResponse{PartialSuccess: &collogs.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "no"}})
	if err != nil {
		t.Fatal(err)
	}
	col.answer = func(path string, n int, w http.ResponseWriter, r *http.Request) bool {
		if path == "/v1/logs" && n == 1 {
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = w.Write(text)
			return true
		}
		<-r.Context().Done()
		return true
	}
	col.listen(t)
	var logged bytes.Buffer
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Telemetry, o.Logger = col.url(), logTo(&logged) })
	c := daemontest.Client(t, d)
	create(t, c, sandbox.Spec{Name: "one"})
	col.await(t, func() bool { return col.asked["/v1/logs"] == 1 })
	create(t, c, sandbox.Spec{Name: "two"})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(logged.String(), "rejected some of the events") {
		t.Errorf("nobody is told: %s", logged.String())
	}
}

func TestTelemetryRefuses(t *testing.T) {
	m := daemontest.New(t)
	for _, bad := range []string{"nonsense", "http://", "ftp://x", "http://user:canary@x", "http://x?key=canary"} {
		o := m.Options()
		o.Telemetry = bad
		_, err := daemon.Start(t.Context(), o)
		wantCode(t, err, sandbox.CodeInvalid)
		if strings.Contains(err.Error(), "canary") {
			t.Error(err)
		}
	}
	o := m.Options()
	o.LookupEnv = func(name string) (string, bool) {
		v, ok := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}[name]
		return v, ok
	}
	_, err := daemon.Start(t.Context(), o)
	wantCode(t, err, sandbox.CodeInvalid)
	m.Start(t, func(o *daemon.Options) {
		o.LookupEnv = func(name string) (string, bool) {
			if name == "OTEL_SDK_DISABLED" {
				return "true", true
			}
			return "", false
		}
		o.Telemetry = "nonsense" // which is not used
	})
}
