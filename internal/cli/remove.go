package cli

import (
	"context"

	"github.com/spf13/pflag"
)

// forceFlag is -f of the commands that remove things by name. more says what else
// it does.
func forceFlag(flags *pflag.FlagSet, force *bool, more string) {
	flags.BoolVarP(force, "force", "f", false, "ignore those that do not exist"+more)
}

// removeEach removes things by name, prints the names of those that are gone
// now, and says of each other one why it is not. With force, one that does not
// exist is passed over.
func (a *App) removeEach(ctx context.Context, names []string, force bool, remove func(context.Context, string) error) error {
	failed := false
	for _, name := range names {
		switch err := remove(ctx, name); {
		case err != nil && ctx.Err() != nil:
			return err
		case err != nil && force && missing(err):
		case err != nil:
			failed = true
			a.report(nil, err)
		default:
			if err := a.println(name); err != nil {
				return err
			}
		}
	}
	if failed {
		return exitCode(exitFailure)
	}
	return nil
}
