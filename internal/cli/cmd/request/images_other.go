//go:build !linux

package request

import (
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/target"
)

// CompleteImages offers nothing, because images are on the daemon's machine.
func CompleteImages(*target.Env) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
