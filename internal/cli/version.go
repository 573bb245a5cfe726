package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
)

func versionCmd(a *target.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version",
		Example: `  atoll version --json`,
		GroupID: resource.GroupMachine,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(context.Context, []string) error {
		v := a.Version
		if asJSON {
			return a.PrintJSON(v)
		}
		return a.Println(versionLine(a))
	})
	return cmd
}

// versionLine is the output of atoll version and atoll --version.
func versionLine(a *target.Env) string {
	v := a.Version
	return fmt.Sprintf("atoll %s (gVisor %s, %s, %s/%s)", cmp.Or(v.Atoll, "unknown"), cmp.Or(v.Engine, "unknown"), v.Go, v.OS, v.Arch)
}
