package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// The program of a machine needs Linux. Elsewhere this is said, and nothing is
// written, such as a unit of a service.
func TestMachinesNeedLinux(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"join tls://atoll.example.com:4222", "status", "pause", "resume", "leave", "updates on --yes", "updates off", "screen off", "service install",
	} {
		var said bytes.Buffer
		a := &App{Env: &target.Env{Term: &term.Term{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &said, LookupEnv: clitest.Lookup(nil)}}}
		code := a.Main(t.Context(), append([]string{"--state-dir", t.TempDir(), "machine"}, strings.Fields(args)...))
		if code == 0 || !strings.Contains(said.String(), "this machine cannot be used by a daemon") {
			t.Errorf("machine %s: code %d, %q", args, code, said.String())
		}
	}
}
