package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// A client build cannot run sandboxes, and says what to do.
func TestClientNamesTheDaemon(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"ls"}, {"run", "--", "true"}, {"create"}, {"up"}, {"up", "--detach"}, {"session", "ls"}, {"image", "ls"}, {"rm", "--all"}} {
		var out, said bytes.Buffer
		a := &App{Env: &target.Env{Term: &term.Term{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &said, LookupEnv: clitest.Lookup(nil)}}}
		code := a.Main(t.Context(), append([]string{"--state-dir", t.TempDir()}, args...))
		if code == 0 || !strings.Contains(said.String(), "ATOLL_HOST") || out.Len() > 0 {
			t.Errorf("%v: code %d, %q, output %q", args, code, said.String(), out.String())
		}
	}
}
