package hostedtest

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/need"
)

// Check runs `atoll provider check` as a user does: the real command, which
// finds the fake through environment variables. No case may fail, and the
// missing capabilities must be exactly those in absent. secret must not appear
// in the command's output.
func Check(t *testing.T, name, secret string, absent []string, env ...string) {
	t.Helper()
	need.Full(t, "TestConformance runs part of the suite, and the command all of it")
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Getenv("ATOLL_BIN"), "provider", "check", name, "--json")
	cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+filepath.Join(t.TempDir(), "state"), "ATOLL_NO_DAEMON=1", "ATOLL_HOST=")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v", strings.Join(cmd.Args, " "), err)
	}
	t.Logf("%s", stderr.Bytes())
	if !strings.Contains(stderr.String(), "the service may charge for this: check makes up to ") {
		t.Error("the command does not warn about its costs")
	}
	if strings.Contains(stdout.String()+stderr.String(), secret) {
		t.Error("the command shows the key")
	}
	var report drivertest.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatalf("%v: %s", err, stdout.Bytes())
	}
	for _, res := range report.Failed() {
		t.Errorf("%s failed: %s", res.Name, strings.Join(res.Messages, "; "))
	}
	passed, missing := 0, map[string]bool{}
	for _, res := range report.Results {
		switch res.Status {
		case drivertest.Pass:
			passed++
		case drivertest.Skipped:
			defer need.Thing(t, "python3", res.Name+" was skipped")
		case drivertest.NotApplicable:
			missing[res.Capability] = true
		}
	}
	if got := slices.Sorted(maps.Keys(missing)); !slices.Equal(got, absent) {
		t.Errorf("the provider lacks %q, want %q", got, absent)
	}
	t.Logf("%d cases passed, of %d", passed, len(report.Results))
}
