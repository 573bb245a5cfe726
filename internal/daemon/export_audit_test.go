package daemon_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// What is exported can be checked by a program that knows only the recipe, and
// holds nothing of another tenant.
func TestExportAudit(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	create(t, daemontest.Client(t, d), sandbox.Spec{Name: "canary"})
	c := bearer(t, d, "acme", "read", "write")
	create(t, c, sandbox.Spec{Name: "one"})
	var out bytes.Buffer
	if err := c.ExportAudit(t.Context(), atoll.EventOptions{}, &out); err != nil {
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
	wantCode(t, bearer(t, d, "acme", "exec").ExportAudit(t.Context(), atoll.EventOptions{}, &out), sandbox.CodeDenied)
}
