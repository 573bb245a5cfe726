package operate

import (
	"context"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
)

func (a upCommands) downCmd() *cobra.Command {
	patience := resource.DurationFlag(30 * time.Second)
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the daemon; sandboxes live on",
		Long: `Down shuts the daemon of the state directory down and waits until it has ended.
Sandboxes keep running, and the next daemon takes them over; see also: atoll rm
--all. It is not an error if no daemon runs.`,
		Example: `  atoll down`,
		GroupID: resource.GroupDaemon,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().VarP(&patience, "time", "t", "how long it may take to end")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(patience))
		defer cancel()
		return a.endDaemon(ctx, filepath.Join(filepath.Dir(a.Socket()), target.LockName))
	})
	return cmd
}
