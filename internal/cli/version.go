package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *App) versionCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version",
		Example: `  atoll version --json`,
		GroupID: groupMachine,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = interruptible(func(context.Context, []string) error {
		v := a.Version
		if asJSON {
			return a.printJSON(v)
		}
		_, err := fmt.Fprintf(a.Stdout, "atoll %s (gVisor %s, %s, %s/%s)\n", cmp.Or(v.Atoll, "unknown"), cmp.Or(v.Engine, "unknown"), v.Go, v.OS, v.Arch)
		return err
	})
	return cmd
}
