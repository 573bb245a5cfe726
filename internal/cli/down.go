package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// noDaemon reports whether the user wants no daemon to be started for a command.
func (a *Env) noDaemon() bool {
	text, _ := a.LookupEnv("ATOLL_NO_DAEMON")
	wanted, err := strconv.ParseBool(text)
	return a.direct || text != "" && (err != nil || wanted)
}

// mustDaemon is daemon for commands that make no sense without one: if none runs,
// it starts one in the background and says so.
func (a *Env) mustDaemon(ctx context.Context) (*atoll.Client, error) {
	c, err := a.daemon(ctx)
	if err != nil || c != nil {
		return c, err
	}
	if a.noDaemon() {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "no daemon runs", Hint: "start one with: atoll up"}
	}
	if err := a.startNoted(ctx); err != nil {
		return nil, err
	}
	if c, err = a.daemon(ctx); err == nil && c == nil {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the daemon was started but does not answer", Hint: "see " + filepath.Join(filepath.Dir(a.socket()), logName)}
	}
	return c, err
}

// startNoted starts a daemon for a command, unless one runs, and says so.
func (a *Env) startNoted(ctx context.Context) error {
	pid, err := a.startDaemon(ctx, "", nil)
	if pid != 0 {
		a.Say("note", fmt.Sprintf("started a daemon in the background, as process %d; end it with: atoll down", pid))
	}
	return err
}

func (a upCommands) downCmd() *cobra.Command {
	patience := durationFlag(30 * time.Second)
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the daemon; sandboxes live on",
		Long: `Down shuts the daemon of the state directory down and waits until it has ended.
Sandboxes keep running, and the next daemon takes them over; see also: atoll rm
--all. It is not an error if no daemon runs.`,
		Example: `  atoll down`,
		GroupID: groupDaemon,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().VarP(&patience, "time", "t", "how long it may take to end")
	cmd.RunE = interruptible(func(ctx context.Context, _ []string) error {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(patience))
		defer cancel()
		return a.endDaemon(ctx, filepath.Join(filepath.Dir(a.socket()), lockName))
	})
	return cmd
}
