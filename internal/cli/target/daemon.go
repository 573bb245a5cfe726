package target

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// NoDaemon reports whether the user wants no daemon to be started for a command.
func (e *Env) NoDaemon() bool {
	text, _ := e.LookupEnv("ATOLL_NO_DAEMON")
	wanted, err := strconv.ParseBool(text)
	return e.Direct || text != "" && (err != nil || wanted)
}

// MustDaemon is daemon for commands that make no sense without one: if none runs,
// it starts one in the background and says so.
func (e *Env) MustDaemon(ctx context.Context) (*atoll.Client, error) {
	c, err := e.Daemon(ctx)
	if err != nil || c != nil {
		return c, err
	}
	if e.NoDaemon() {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "no daemon runs", Hint: "start one with: atoll up"}
	}
	if err := StartNoted(ctx, e); err != nil {
		return nil, err
	}
	if c, err = e.Daemon(ctx); err == nil && c == nil {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the daemon was started but does not answer", Hint: "see " + filepath.Join(filepath.Dir(e.Socket()), logName)}
	}
	return c, err
}

// StartNoted starts a daemon for a command, unless one runs, and says so.
func StartNoted(ctx context.Context, a *Env) error {
	pid, err := a.StartDaemon(ctx, "", nil)
	if pid != 0 {
		a.Say("note", fmt.Sprintf("started a daemon in the background, as process %d; end it with: atoll down", pid))
	}
	return err
}

// DaemonSandbox returns a sandbox of the daemon, or that of a session.
func (e *Env) DaemonSandbox(ctx context.Context, name string) (*atoll.Sandbox, error) {
	c, err := e.MustDaemon(ctx)
	if err != nil {
		return nil, err
	}
	if e.Sessions {
		s, err := c.Sessions().Get(ctx, name)
		if err != nil {
			return nil, err
		}
		return s.Sandbox, nil
	}
	return c.Get(ctx, name)
}

// findSession returns the sandbox of a session as commands use sandboxes.
func findSession(ctx context.Context, a *Env, name string) (Sandbox, error) {
	s, err := a.DaemonSandbox(ctx, name)
	if err != nil {
		return nil, err
	}
	return RemoteSandbox{s}, nil
}
