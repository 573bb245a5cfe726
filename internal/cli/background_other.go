//go:build !linux

package cli

import (
	"context"

	"github.com/spf13/cobra"
)

const (
	logName  = "daemon.log"
	lockName = "daemon.lock"
)

func (a *Env) startDaemon(context.Context, string, []string) (pid int, err error) {
	return 0, clientOnly("no daemon can run on this machine")
}

func (a upCommands) detach(context.Context, *cobra.Command) error {
	return clientOnly("no daemon can run on this machine")
}

func (a upCommands) endDaemon(context.Context, string) error {
	return clientOnly("no daemon can run on this machine")
}
