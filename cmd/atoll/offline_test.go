package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// TestOfflineHint checks that a command that fails for lack of a network comes
// with one hint that names the setting, and that other commands come with none.
func TestOfflineHint(t *testing.T) {
	s := newSoaker(t)
	b := s.sandbox(t, "box")
	const lookup = "getent hosts example.com || { echo 'curl: (6) Could not resolve host: example.com' >&2; exit 6; }"
	stderr := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(s.bin, args...)
		cmd.Env = s.env
		var out strings.Builder
		cmd.Stderr = &out
		_ = cmd.Run() // it fails
		return out.String()
	}
	const hint = "atoll: hint: this sandbox has no network; allow hosts with --egress HOST of atoll run and create\n"
	for _, args := range [][]string{{"exec", "box", "--"}, {"run", "--"}, {"run", "--no-daemon", "--"}} {
		if got := stderr(append(args, "sh", "-c", lookup)...); strings.Count(got, hint) != 1 || strings.Count(got, "hint:") != 1 {
			t.Errorf("%s: %q, want one hint", args, got)
		}
		for _, quiet := range []string{lookup + "; true", "echo network is fine >&2; exit 1"} {
			if quiet = strings.Replace(quiet, "exit 6", "true", 1); strings.Contains(stderr(append(args, "sh", "-c", quiet)...), "hint:") {
				t.Errorf("%s: a hint for %q", args, quiet)
			}
		}
	}
	res, err := b.Run(t.Context(), sandbox.Command{Shell: lookup}, atoll.RunOptions{})
	if err != nil || !strings.Contains(res.Hint, "network.egress") || res.Exit.Code != 6 {
		t.Errorf("the library returned %+v, %v", res, err)
	}
	if res, err = b.Run(t.Context(), sandbox.Command{Shell: "exit 6"}, atoll.RunOptions{}); err != nil || res.Hint != "" {
		t.Errorf("the library returned %+v, %v", res, err)
	}
	cmd := exec.Command(s.bin, "mcp")
	cmd.Env = s.env
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	out := use(t, session, "sandbox_exec", args{"sandbox": "box", "command": lookup})
	if text, _ := out["hint"].(string); !strings.Contains(text, "no network") || !strings.Contains(text, "egress") {
		t.Errorf("MCP returned %v", out)
	}
	if out = use(t, session, "sandbox_exec", args{"sandbox": "box", "command": "exit 6"}); out["hint"] != nil {
		t.Errorf("MCP returned %v", out)
	}
}
