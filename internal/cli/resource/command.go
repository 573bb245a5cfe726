package resource

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
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
		err := run(ctx, args)
		if err != nil && ctx.Err() != nil && cmd.Context().Err() == nil && sandbox.CodeOf(err) == sandbox.CodeCanceled {
			return &term.Interrupted{Err: err}
		}
		return err
	}
}

// instead returns the subcommands that somebody may mean by word: those that say
// so, else those that are spelt alike.
func instead(cmd *cobra.Command, word string) []string {
	alike := cmd.SuggestionsFor(word) // in their own order, which Commands changes
	var meant []string
	for _, c := range cmd.Commands() {
		if slices.Contains(c.SuggestFor, word) {
			meant = append(meant, c.Name())
		}
	}
	if len(meant) > 0 {
		return meant
	}
	return alike
}

// Parent makes a command with subcommands: alone it shows its help, and an unknown subcommand
// is an error that names the nearest known ones.
func Parent(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := "see: " + cmd.CommandPath() + " --help"
		if near := instead(cmd, args[0]); len(near) > 0 {
			hint = "did you mean: " + cmd.CommandPath() + " " + strings.Join(near, " or ")
		}
		return &term.UsageError{Message: fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0]), Hint: hint}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(subcommands...)
	return cmd
}
