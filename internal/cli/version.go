package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *Env) versionCmd() *cobra.Command {
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
			return a.PrintJSON(v)
		}
		return a.Println(a.versionLine())
	})
	return cmd
}

// versionLine is the output of atoll version and atoll --version.
func (a *Env) versionLine() string {
	v := a.Version
	return fmt.Sprintf("atoll %s (gVisor %s, %s, %s/%s)", cmp.Or(v.Atoll, "unknown"), cmp.Or(v.Engine, "unknown"), v.Go, v.OS, v.Arch)
}
