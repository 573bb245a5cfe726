package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// withDaemon adapts a function that uses a daemon.
func (a *Env) withDaemon(run func(context.Context, *atoll.Client, []string) error) func(*cobra.Command, []string) error {
	return interruptible(func(ctx context.Context, args []string) error {
		c, err := a.mustDaemon(ctx)
		if err != nil {
			return err
		}
		return run(ctx, c, args)
	})
}

// daemonVerb adapts a function that uses a daemon, and shows its result as JSON
// or text.
func daemonVerb[T any](a *Env, cmd *cobra.Command, do func(context.Context, *atoll.Client, []string) (T, error), text func(T) error) *cobra.Command {
	var asJSON bool
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = a.withDaemon(func(ctx context.Context, c *atoll.Client, args []string) error {
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

// daemonList adapts a function that lists objects of a daemon, and shows them as JSON
// or as a table: header has the titles, and row the cells of one.
func daemonList[T any](a *Env, cmd *cobra.Command, header string, list func(context.Context, *atoll.Client, []string) ([]T, error), row func(T) []string) *cobra.Command {
	return daemonVerb(a, cmd, func(ctx context.Context, c *atoll.Client, args []string) ([]T, error) {
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

// daemonRemove adapts a function that removes something of a daemon by its name.
// more says what else --force does.
func (a *Env) daemonRemove(cmd *cobra.Command, more string, remove func(ctx context.Context, c *atoll.Client, name string, force bool) error) *cobra.Command {
	var force bool
	forceFlag(cmd.Flags(), &force, more)
	cmd.RunE = a.withDaemon(func(ctx context.Context, c *atoll.Client, args []string) error {
		return a.removeEach(ctx, args, force, func(ctx context.Context, name string) error { return remove(ctx, c, name, force) })
	})
	return cmd
}

// forceFlag is -f of the commands that remove things by name. more says what else
// it does.
func forceFlag(flags *pflag.FlagSet, force *bool, more string) {
	flags.BoolVarP(force, "force", "f", false, "ignore those that do not exist"+more)
}

// removeEach removes things by name, prints the names of those that are gone
// now, and says of each other one why it is not. With force, one that does not
// exist is passed over.
func (a *Env) removeEach(ctx context.Context, names []string, force bool, remove func(context.Context, string) error) error {
	failed := false
	for _, name := range names {
		switch err := remove(ctx, name); {
		case err != nil && ctx.Err() != nil:
			return err
		case err != nil && force && missing(err):
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
