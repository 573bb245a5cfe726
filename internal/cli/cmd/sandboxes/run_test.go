package sandboxes

import (
	"bytes"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// What a command in a sandbox is said to have ended with is text of others.
func TestOutcomeIsVisible(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	a := &target.Env{Term: &term.Term{Stderr: &said, LookupEnv: clitest.Lookup(nil)}}
	_ = endedWith(a, sandbox.Exit{Reason: sandbox.ReasonCrashed, Detail: clitest.Evil}, &request.CommandFlags{})
	if found := clitest.Harm(said.String()); found != "" || !strings.Contains(said.String(), `\u202e`) {
		t.Errorf("contains %s: %q", found, said.String())
	}
}
