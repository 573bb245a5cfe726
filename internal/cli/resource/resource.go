// Package resource has what the commands for the things of a daemon share: lists,
// removals, filters, flags and completion.
package resource

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// WithDaemon adapts a function that uses a daemon.
func WithDaemon(a *target.Env, run func(context.Context, *atoll.Client, []string) error) func(*cobra.Command, []string) error {
	return Interruptible(func(ctx context.Context, args []string) error {
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		return run(ctx, c, args)
	})
}

// DaemonVerb adapts a function that uses a daemon, and shows its result as JSON
// or text.
func DaemonVerb[T any](a *target.Env, cmd *cobra.Command, do func(context.Context, *atoll.Client, []string) (T, error), text func(T) error) *cobra.Command {
	var asJSON bool
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = WithDaemon(a, func(ctx context.Context, c *atoll.Client, args []string) error {
		out, err := do(ctx, c, args)
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.PrintJSON(out)
		}
		return text(out)
	})
	return cmd
}

// DaemonList adapts a function that lists what a daemon has, and shows it as JSON
// or as a table: header has the titles, and row the cells of one.
func DaemonList[T any](a *target.Env, cmd *cobra.Command, header string, list func(context.Context, *atoll.Client, []string) ([]T, error), row func(T) []string) *cobra.Command {
	return DaemonVerb(a, cmd, func(ctx context.Context, c *atoll.Client, args []string) ([]T, error) {
		all, err := list(ctx, c, args)
		return append([]T{}, all...), err
	}, func(all []T) error {
		rows := make([][]string, 0, len(all))
		for _, one := range all {
			rows = append(rows, row(one))
		}
		return a.Table(header, rows)
	})
}

// DaemonRemove adapts a function that removes something of a daemon by its name.
// more says what else --force does.
func DaemonRemove(a *target.Env, cmd *cobra.Command, more string, remove func(ctx context.Context, c *atoll.Client, name string, force bool) error) *cobra.Command {
	var force bool
	ForceFlag(cmd.Flags(), &force, more)
	cmd.RunE = WithDaemon(a, func(ctx context.Context, c *atoll.Client, args []string) error {
		return RemoveEach(ctx, a, args, force, func(ctx context.Context, name string) error { return remove(ctx, c, name, force) })
	})
	return cmd
}

// ForceFlag is -f of the commands that remove things by name. more says what else
// it does.
func ForceFlag(flags *pflag.FlagSet, force *bool, more string) {
	flags.BoolVarP(force, "force", "f", false, "ignore those that do not exist"+more)
}

// RemoveEach removes things by name, prints the names of those that are gone
// now, and says of each other one why it is not. With force, one that does not
// exist is passed over.
func RemoveEach(ctx context.Context, a *target.Env, names []string, force bool, remove func(context.Context, string) error) error {
	failed := false
	for _, name := range names {
		switch err := remove(ctx, name); {
		case err != nil && ctx.Err() != nil:
			return err
		case err != nil && force && target.Missing(err):
		case err != nil:
			failed = true
			a.Report(nil, err)
		default:
			if err := a.Println(name); err != nil {
				return err
			}
		}
	}
	if failed {
		return term.ExitCode(term.ExitFailure)
	}
	return nil
}
