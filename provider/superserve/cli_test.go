package superserve_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	service "github.com/atoll-run/atoll/internal/servicetest/superserve"
)

// TestCommandLine uses the provider as a person does: with a daemon, snapshots
// and forks.
func TestCommandLine(t *testing.T) {
	w, state := serve(t), t.TempDir()
	atoll := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(os.Getenv("ATOLL_BIN"), args...)
		cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+state, "ATOLL_PROVIDER=superserve", "SUPERSERVE_API_KEY="+service.Key, "SUPERSERVE_BASE_URL="+w.url, "SUPERSERVE_DATA_URL="+w.url)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), service.Key) {
			t.Errorf("atoll %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	defer atoll("down")
	if out := atoll("run", "--", "sh", "-c", "echo $((6*7))"); out != "42\n" {
		t.Errorf("run says %q", out)
	}
	if n := len(w.IDs()); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
	atoll("create", "--name", "one", "--label", "team=blue")
	atoll("exec", "one", "--", "sh", "-c", "echo kept >/root/kept; (sleep 1000 >/dev/null 2>&1 &)")
	atoll("fork", "one", "--name-prefix", "two")
	for _, name := range []string{"one", "two-1"} {
		if out := atoll("exec", name, "--", "sh", "-c", "cat /root/kept; pgrep -f 'sleep 1000' >/dev/null && echo runs"); out != "kept\nruns\n" {
			t.Errorf("%s says %q", name, out)
		}
	}
	w.pause(t, false) // one of them, by another client
	for _, name := range []string{"one", "two-1"} {
		atoll("resume", name)
		if out := atoll("exec", name, "--", "cat", "/root/kept"); out != "kept\n" {
			t.Errorf("%s says %q", name, out)
		}
	}
	atoll("stop", "two-1")
	atoll("start", "two-1")
	if out := atoll("exec", "two-1", "--", "cat", "/root/kept"); out != "kept\n" {
		t.Errorf("after it was stopped: %q", out)
	}
	atoll("rm", "--force", "one", "two-1")

	// A session's sandbox is there for its next use.
	atoll("session", "create", "notes")
	atoll("session", "exec", "notes", "--", "sh", "-c", "echo first >/root/note")
	if out := atoll("session", "exec", "notes", "--", "cat", "/root/note"); out != "first\n" {
		t.Errorf("the session says %q", out)
	}
	atoll("session", "save", "notes")
	atoll("session", "rm", "notes")
	if n := len(w.IDs()) + w.Snapshots(); n != 0 {
		t.Errorf("%d sandboxes and snapshots are left", n)
	}
}
