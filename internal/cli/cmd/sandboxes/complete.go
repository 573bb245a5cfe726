package sandboxes

import (
	"context"
	"path"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/sandbox"
)

// completePlace offers sandboxes as SANDBOX: in addition to the shell's files,
// and then the files in the sandbox.
func completePlace(a *target.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if sb, p := splitPlace(prefix); sb != "" {
			return completeInside(a, cmd, sb, p)
		}
		if strings.Contains(prefix, "/") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		names, directive := resource.CompleteSandboxes(a)(cmd, args, prefix)
		var places []string
		for _, n := range names {
			if strings.HasPrefix(n, prefix) {
				places = append(places, n+":")
			}
		}
		if directive == cobra.ShellCompDirectiveError || len(places) == 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return places, cobra.ShellCompDirectiveNoSpace
	}
}

// completable matches the paths that are offered. Programs in the sandbox
// choose their names, and the shell may insert them into a command line
// unquoted.
var completable = regexp.MustCompile(`^[A-Za-z0-9._/+@%=,-]+$`)

// completeInside offers the files of a sandbox that runs.
func completeInside(a *target.Env, cmd *cobra.Command, name, prefix string) (places []string, directive cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), resource.CompletionTime)
	defer cancel()
	sb, err := a.Find(ctx, name)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	dir, _ := path.Split(prefix)
	directive = cobra.ShellCompDirectiveNoFileComp
	for f, err := range sb.Files().List(ctx, inside(dir), driver.ListOptions{}) {
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		p := dir + path.Base(f.Path)
		if !strings.HasPrefix(p, prefix) || !completable.MatchString(p) {
			continue
		}
		if f.Type == sandbox.TypeDir {
			p += "/"
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		places = append(places, name+":"+p)
	}
	return places, directive
}
