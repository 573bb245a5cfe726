package daemon_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/admin"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// An export can be verified by a program that knows only the documented format,
// and contains nothing of another tenant.
func TestExportAudit(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	create(t, daemontest.Client(t, d), sandbox.Spec{Name: "canary"})
	c := bearer(t, d, "acme", "read", "write")
	create(t, c, sandbox.Spec{Name: "one"})
	var out bytes.Buffer
	if err := c.Admin().ExportAudit(t.Context(), admin.AuditChained, sandbox.EventQuery{}, &out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "canary") {
		t.Error("it holds what belongs to another tenant")
	}
	head := sha256.Sum256([]byte("atoll genesis v1\nacme"))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, line := range lines {
		hash, event, ok := strings.Cut(strings.TrimPrefix(line, `{"hash":"`), `","event":`)
		if !ok {
			t.Fatal(line)
		}
		head = sha256.Sum256(append([]byte("atoll event v1\n"+string(head[:])), strings.TrimSuffix(event, "}")...))
		if hex.EncodeToString(head[:]) != hash {
			t.Errorf("the chain breaks at %s", line)
		}
	}
	if len(lines) < 2 {
		t.Errorf("only %d records", len(lines))
	}
	wantCode(t, bearer(t, d, "acme", "exec").Admin().ExportAudit(t.Context(), admin.AuditChained, sandbox.EventQuery{}, &out), sandbox.CodeDenied)
}

// A file for OpenTelemetry contains exactly the records that a collector gets,
// and nothing of another tenant.
func TestExportAuditOTLP(t *testing.T) {
	col := newCollector(t).listen(t)
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Telemetry = col.url() })
	create(t, daemontest.Client(t, d), sandbox.Spec{Name: "canary"})
	c := bearer(t, d, "acme", "read", "write", "exec")
	s := create(t, c, sandbox.Spec{Name: "one"})
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "exit 3"}, atoll.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := c.Admin().ExportAudit(t.Context(), admin.AuditOTLP, sandbox.EventQuery{}, &out); err != nil {
		t.Fatal(err)
	}
	written := decodeOTLP(t, out.Bytes())
	if len(written) < 4 {
		t.Fatalf("only %d records", len(written))
	}
	sent := func() (of []*logs.LogRecord) {
		for _, l := range col.logs {
			if value(l.Attributes, "atoll.tenant") == "acme" {
				of = append(of, l)
			}
		}
		return of
	}
	col.await(t, func() bool { return len(sent()) >= len(written) })
	col.mu.Lock()
	defer col.mu.Unlock()
	for i, w := range written {
		if !proto.Equal(w, sent()[i]) {
			t.Errorf("written: %v\nsent:    %v", w, sent()[i])
		}
	}
	wantCode(t, c.Admin().ExportAudit(t.Context(), "xml", sandbox.EventQuery{}, &out), sandbox.CodeInvalid)
}

// decodeOTLP decodes lines of OTLP JSON, in which identifiers are hexadecimal,
// unlike in the JSON form of protocol buffers.
func decodeOTLP(t *testing.T, text []byte) (all []*logs.LogRecord) {
	t.Helper()
	for line := range bytes.Lines(text) {
		var data logs.LogsData
		if err := protojson.Unmarshal(line, &data); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		r := data.ResourceLogs[0]
		if got := value(r.Resource.Attributes, "service.name"); got != "atoll" {
			t.Errorf("the service is called %q", got)
		}
		for _, l := range r.ScopeLogs[0].LogRecords {
			if len(l.TraceId) > 0 {
				id, err := hex.DecodeString(base64.StdEncoding.EncodeToString(l.TraceId))
				if err != nil {
					t.Fatal(err)
				}
				l.TraceId = id
			}
			all = append(all, l)
		}
	}
	return all
}
