package operate

import (
	"bytes"
	"context"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// startedDaemon records when it reloads its policies.
type startedDaemon struct {
	reloaded bool
	failed   chan error
}

func (d *startedDaemon) Socket() string { return "atoll.sock" }

func (d *startedDaemon) TCP() net.Addr { return nil }

func (d *startedDaemon) E2B() net.Addr { return nil }

func (d *startedDaemon) Bridge() net.Addr { return nil }

func (d *startedDaemon) Failed() <-chan error { return d.failed }

func (d *startedDaemon) Close() error { return nil }

func (d *startedDaemon) Reload(context.Context) error {
	d.reloaded = true
	d.failed <- nil
	return nil
}

// A SIGHUP that arrives while the daemon starts makes it reload when it has
// started.
func TestReloadDuringStart(t *testing.T) {
	d := &startedDaemon{failed: make(chan error, 1)}
	a := &target.Env{Term: &term.Term{Stderr: new(bytes.Buffer), LookupEnv: clitest.Lookup(nil)}}
	start := func(context.Context, UpOptions) (Daemon, error) { return d, syscall.Kill(os.Getpid(), syscall.SIGHUP) }
	if err := (upCommands{a, start}).runDaemon(t.Context(), UpOptions{}); err != nil {
		t.Fatal(err)
	}
	if !d.reloaded {
		t.Error("the signal was lost")
	}
}
