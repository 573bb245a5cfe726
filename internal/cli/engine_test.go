package cli

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// The light program continues in the engine before a command has read anything,
// unless there is a daemon, or the command needs none.
func TestBeginInEngine(t *testing.T) {
	t.Parallel()
	inEngine := errors.New("continues in the engine")
	run := func(t *testing.T, state string, env map[string]string, args ...string) (engine string, left int) {
		t.Helper()
		in := strings.NewReader("input")
		var said bytes.Buffer
		a := &App{Env: &target.Env{
			Term:   &term.Term{Stdin: in, Stdout: io.Discard, Stderr: &said, LookupEnv: clitest.Lookup(env)},
			Engine: func(dir string) error { engine = dir; return inEngine },
		}}
		code := a.Main(t.Context(), append([]string{"--state-dir", state}, args...))
		if engine != "" && (code == 0 || !strings.Contains(said.String(), inEngine.Error())) {
			t.Errorf("%v: code %d, %q", args, code, said.String())
		}
		return engine, in.Len()
	}
	for _, args := range [][]string{
		{"ls"},
		{"run", "-i", "--", "cat"},
		{"create"},
		{"up"},
		{"up", "-d"},
		{"doctor"},
		{"image", "ls"},
		{"code", "demo"},
		{"patch", "demo:/x"},
		{"profile", "apply", "p", "-f", "-"},
		{"session", "resume", "-"},
		{"computer", "type", "demo"},
		{"secret", "create", "x"},
		{"machine", "status"},
		{"state", "accept"},
		{"provider", "check"},
		{"rm", "--all"},
	} {
		state := t.TempDir()
		if engine, left := run(t, state, nil, args...); engine != state || left != len("input") {
			t.Errorf("%v: continued in %q with %d bytes of input, want %s and all", args, engine, left, state)
		}
	}
	for _, args := range [][]string{
		{},
		{"--help"},
		{"help", "run"},
		{"run", "--help"},
		{"version"},
		{"--version"},
		{"completion", "bash"},
		{"__complete", "ru"},
		{"context", "ls"},
		{"down"},
		{"image"},
		{"images"},
		{"run", "--nonsense"},
		{"nonsense"},
	} {
		if engine, _ := run(t, t.TempDir(), nil, args...); engine != "" {
			t.Errorf("%v continued in the engine", args)
		}
	}
	if engine, _ := run(t, t.TempDir(), map[string]string{"ATOLL_HOST": "http://127.0.0.1:1"}, "ls"); engine != "" {
		t.Error("ls continued in the engine, although there is the address of a daemon")
	}
	state := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(state, atoll.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	if engine, _ := run(t, state, nil, "policy", "check", "nothing"); engine != "" {
		t.Error("a command continued in the engine, although a daemon listens")
	}
}
