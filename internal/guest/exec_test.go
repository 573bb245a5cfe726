package guest_test

import (
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestExec(t *testing.T) {
	c := newClient(t, "/")
	long := strings.Repeat("x", 100<<10)
	for _, tt := range []struct {
		name   string
		cmd    *sandbox.Command
		stdin  string
		stdout string
		stderr string // a part
		code   int
		signal int
	}{
		{name: "true", cmd: &sandbox.Command{Args: []string{"true"}}},
		{name: "exit code", cmd: sh("exit 7"), code: 7},
		{name: "streams", cmd: sh("echo out; echo err >&2"), stdout: "out\n", stderr: "err\n"},
		{name: "stdin", cmd: &sandbox.Command{Args: []string{"cat"}}, stdin: "a\x00\xffb", stdout: "a\x00\xffb"},
		{name: "no stdin", cmd: &sandbox.Command{Args: []string{"cat"}}},
		{name: "bytes", cmd: &sandbox.Command{Args: []string{"printf", "%s", "\xff\xfe\n'\" $x"}}, stdout: "\xff\xfe\n'\" $x"},
		{name: "long argument", cmd: &sandbox.Command{Args: []string{"printf", "%s", long}}, stdout: long},
		{name: "signal", cmd: sh("kill -TERM $$"), code: 143, signal: 15},
		{name: "not found", cmd: &sandbox.Command{Args: []string{"no-such-program"}}, code: 127, stderr: "no-such-program"},
		{name: "no such file", cmd: &sandbox.Command{Args: []string{"/no/such"}}, code: 127, stderr: "no such file"},
		{name: "not executable", cmd: &sandbox.Command{Args: []string{"/etc/passwd"}}, code: 126, stderr: "permission denied"},
		{name: "directory", cmd: &sandbox.Command{Args: []string{"/etc"}}, code: 126, stderr: "directory"},
		{name: "no such dir", cmd: &sandbox.Command{Args: []string{"true"}, Dir: "/no/such"}, code: 126, stderr: "/no/such"},
		{name: "no such user", cmd: &sandbox.Command{Args: []string{"true"}, User: "nobody-of-that-name"}, code: 126, stderr: "no such user"},
		{name: "dir", cmd: &sandbox.Command{Args: []string{"pwd"}, Dir: "/etc"}, stdout: "/etc\n"},
		{name: "env", cmd: &sandbox.Command{Shell: `printf %s "$A"`, Env: map[string]string{"A": "\xff b"}}, stdout: "\xff b"},
		{name: "env path", cmd: &sandbox.Command{Args: []string{"true"}, Env: map[string]string{"PATH": "/no/such"}}, code: 127, stderr: "PATH"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := run(t, c, tt.cmd, tt.stdin)
			if got.stdout != tt.stdout || !strings.Contains(got.stderr, tt.stderr) || (tt.stderr == "" && got.stderr != "") {
				t.Errorf("stdout %.100q, stderr %.100q", got.stdout, got.stderr)
			}
			if got.exit.Code != tt.code || got.exit.Signal != tt.signal {
				t.Errorf("exit %+v", got.exit)
			}
		})
	}
}
