package operate

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func (a eventCommands) auditPruneCmd() *cobra.Command {
	var what operator.AuditPrune
	var before string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove the oldest events of the log, which stays verifiable", Args: cobra.NoArgs,
		Long: `Prune removes the oldest events of the log. It keeps the number and the hash of the
last removed event under a seal, and audit verify continues from there. Events that
were removed in the database directly have no such seal, so verify reports them.

The newest event, actions without an outcome, and what is still to be sent to a
collector stay. Only the owner of the machine may prune. Pruning is logged as an
event itself, and fails if the log is damaged. Removed events cannot be restored; to
keep a copy, see audit export.`,
		Example: `  atoll audit prune --before 90d
  atoll audit prune --up-to 1000 --json`,
	}
	flags := cmd.Flags()
	flags.StringVar(&before, "before", "", "remove events older than this: an age such as 90d or 12h, or a time such as 2026-01-31T00:00:00Z")
	flags.Int64Var(&what.UpTo, "up-to", 0, "remove events with at most this number")
	flags.StringVar(&what.Tenant, "tenant", "", "whose log (default: your own)")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	_ = cmd.RegisterFlagCompletionFunc("tenant", cobra.NoFileCompletions)
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		if before == "" && what.UpTo == 0 {
			return &term.UsageError{Message: "say what to remove, with --before or --up-to", Hint: "for example: atoll audit prune --before 90d"}
		}
		var err error
		if what.Before, err = resource.ParseTime("before", before); err != nil {
			return err
		}
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		done, err := c.Admin().PruneAudit(ctx, what)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(done)
		}
		return a.Printf("%d events removed\n", done.Removed)
	})
	return cmd
}
