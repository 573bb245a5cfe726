package resource

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/term"
)

const (
	GroupSandbox = "sandbox"
	GroupDaemon  = "daemon"
	GroupMachine = "machine"
)

// Interruptible adapts a command that stops when the user interrupts it.
func Interruptible(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		return run(ctx, args)
	}
}

// Parent makes a command with subcommands: alone it shows its help, and an unknown subcommand
// is an error that names the nearest known ones.
func Parent(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := "see: " + cmd.CommandPath() + " --help"
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "did you mean: " + cmd.CommandPath() + " " + strings.Join(near, " or ")
		}
		return &term.UsageError{Message: fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0]), Hint: hint}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(subcommands...)
	return cmd
}
