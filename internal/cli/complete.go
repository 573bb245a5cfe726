package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// completionTime bounds how long a shell waits for names.
const completionTime = 2 * time.Second

// completeSandbox offers the names of sandboxes for the first word, and leaves
// the rest to the shell.
func (a *App) completeSandbox(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeSandboxes(cmd, args, prefix)
}

// completeSandboxes offers the names of sandboxes for every word.
func (a *App) completeSandboxes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	t, err := a.target(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all, err := t.List(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, oneLine(s.Name, 63))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *App) completeProviders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range a.Providers {
		names = append(names, p.Name+"\t"+p.Summary)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeFlag offers fixed values for a flag.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}
