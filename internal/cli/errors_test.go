package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// failing is a command line with a node that cannot be opened.
func failing(err error) (*App, *bytes.Buffer) {
	var said bytes.Buffer
	return &App{Env: &target.Env{
		Open:      func(string) (target.System, error) { return nil, err },
		Term:      &term.Term{Stdout: &bytes.Buffer{}, Stderr: &said, LookupEnv: clitest.Lookup(nil)},
		Providers: []target.ProviderInfo{{Name: "fake"}},
	}}, &said
}

// With --json, errors are JSON too, except usage errors.
func TestErrorsAsJSON(t *testing.T) {
	want := &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "disk", Message: "is away\x1b[2J", Hint: "bring it back"}
	for _, tt := range []struct {
		err  error
		want sandbox.Error
	}{
		{want, *want},
		{syscall.ENOSPC, sandbox.Error{Code: sandbox.CodeOf(syscall.ENOSPC), Message: syscall.ENOSPC.Error()}},
	} {
		a, said := failing(tt.err)
		code := a.Main(t.Context(), []string{"image", "ls", "--json"})
		var got struct{ Error sandbox.Error }
		if err := json.Unmarshal(said.Bytes(), &got); err != nil || got.Error != tt.want || code != term.ExitFailure {
			t.Errorf("code %d, %v: %q", code, err, said)
		}
		if lines := strings.Count(said.String(), "\n"); lines != 1 || strings.ContainsRune(said.String(), 0x1b) {
			t.Errorf("%d lines: %q", lines, said)
		}
	}
	for _, args := range [][]string{{"image", "ls"}, {"image", "ls", "--json", "--nonsense"}} {
		a, said := failing(want)
		if a.Main(t.Context(), args) == 0 || !strings.HasPrefix(said.String(), "atoll: error: ") {
			t.Errorf("%v said %q", args, said)
		}
	}
}

// Usage errors use the names in the command's usage, and have a hint.
func TestUsageErrors(t *testing.T) {
	for _, tt := range []struct{ line, text, hint string }{
		{"cp one", "atoll cp: LOCAL is missing", "see: atoll cp --help"},
		{"cp a b c", "atoll cp takes 2 arguments, not 3", "see: atoll cp --help"},
		{"context use a b", "atoll context use takes 1 argument, not 2", "see: atoll context use --help"},
		{"logs a b c", "atoll logs takes 1 to 2 arguments, not 3", "see: atoll logs --help"},
		{"provider check a b", "atoll provider check takes at most 1 argument, not 2", "see: atoll provider check --help"},
		{"stop", "atoll stop: SANDBOX is missing", "see: atoll stop --help"},
		{"profile test", "atoll profile test: URL is missing", "see: atoll profile test --help"},
		{"port forward x", "atoll port forward: [LOCAL:]REMOTE is missing", "see: atoll port forward --help"},
		{"ls extra", `atoll ls takes no arguments, and was given "extra"`, "see: atoll ls --help"},
		{"context create office", "--host is missing", "see: atoll context create --help"},
		{"ps -a", "name the sandbox whose commands to list", "to list sandboxes: atoll ls"},
		{"rnu", `there is no command "atoll rnu"`, "did you mean: atoll run"},
		{"image lss", `there is no command "atoll image lss"`, "did you mean: atoll image ls"},
		{"frobnicate", `there is no command "atoll frobnicate"`, "see: atoll --help"},
		{"rmi debian:12", `there is no command "atoll rmi"`, "use: atoll image rm"},
		{"rmi -f debian:12", `there is no command "atoll rmi"`, "use: atoll image rm"},
		{"images -a", `there is no command "atoll images"`, "use: atoll image ls"},
		{"build -t x .", `there is no command "atoll build"`, "use: atoll template build"},
		{"system prune -af", `there is no command "atoll system"`, "use: atoll state"},
		{"compose -f x.yaml up -d", `there is no command "atoll compose"`, "use: atoll create"},
		{"wait one", `there is no command "atoll wait"`, "use: atoll attach"},
		{"search debian", "the place has no path", "atoll image ls"},
		{"push x", `there is no command "atoll push"`, "use: atoll template build"},
		{"tag a b", `there is no command "atoll tag"`, "use: atoll image import"},
		{"create demo", `atoll create takes no arguments, and was given "demo"`, "atoll create --name demo"},
		{"ls --nope", "unknown flag: --nope", "see: atoll ls --help"},
		{"ls -H tcp://there", "unknown shorthand flag: 'H' in -H", "atoll context"},
		{"run --network none -- true", "unknown flag: --network", "--egress"},
		{"create --net=host", "unknown flag: --net", "--profile"},
		{"run --gpus all -- true", "unknown flag: --gpus", "sandboxes have no GPU"},
		{"run --mem 1g -- true", "unknown flag: --mem", "--memory"},
		{"policy ls --json", `there is no command "atoll policy ls"`, "see: atoll policy --help"},
		{"rnu --json", `there is no command "atoll rnu"`, "did you mean: atoll run"},
		{"key rm x", `there is no command "atoll key rm"`, "did you mean: atoll key revoke"},
		{"machine delete --force x", `there is no command "atoll machine delete"`, "did you mean: atoll machine revoke"},
		{"context add office", `there is no command "atoll context add"`, "did you mean: atoll context create"},
		{"fork demo --count x", `--count: "x" is not a whole number`, "see: atoll fork --help"},
		{"fork demo -n 99999999999999999999", `--count: "99999999999999999999" is out of range`, "see: atoll fork --help"},
		{"cp a:/x b:/y", "both are inside a sandbox", "atoll cp a:/x - | atoll cp - b:DIR"},
		{"cp a b", "one of the two must be inside a sandbox, written SANDBOX:PATH", "atoll cp demo:/etc/hosts ."},
		{"create --cpu 2", "unknown flag: --cpu", "--cpus"},
	} {
		a, said := failing(&sandbox.Error{Code: sandbox.CodeInternal, Message: "it was carried out"})
		code := a.Main(t.Context(), strings.Fields(tt.line))
		text, hint, _ := strings.Cut(said.String(), "\n")
		if text != "atoll: error: "+tt.text || !strings.HasPrefix(hint, "atoll: hint: ") || !strings.Contains(hint, tt.hint) {
			t.Errorf("atoll %s says %q; want %q, and a hint with %q", tt.line, said, tt.text, tt.hint)
		}
		want := term.ExitUsage
		if strings.HasPrefix(tt.line, "run ") {
			want = term.ExitAtoll
		}
		if code != want {
			t.Errorf("atoll %s: exit code %d, want %d", tt.line, code, want)
		}
	}
}

// The limits of a request are checked before it, and named as the flag is.
func TestForkCount(t *testing.T) {
	for _, count := range []string{"0", "-1", "101"} {
		a, said := failing(&sandbox.Error{Code: sandbox.CodeInternal, Message: "it was carried out"})
		code := a.Main(t.Context(), []string{"fork", "demo", "--count", count})
		if want := "--count: " + count + " is not a number from 1 to 100"; code != term.ExitFailure || !strings.Contains(said.String(), want) {
			t.Errorf("code %d, %q; want %q", code, said, want)
		}
	}
}
