//go:build linux

package request

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
)

// ImageStore opens the images of this machine, which a daemon elsewhere does not
// use.
func ImageStore(a *target.Env) (*image.Store, error) {
	d, said, err := a.NamedDaemon()
	if err != nil {
		return nil, err
	}
	if d.Host != "" && d.Host != "unix://"+a.Socket() {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "images", Message: "images are managed on the daemon's machine, and " + said + " names a remote daemon",
			Hint: "run this where that daemon is; a sandbox's image is fetched there when it is made",
		}
	}
	system, err := a.Node()
	if err != nil {
		return nil, err
	}
	return system.Images()
}

// CompleteImages offers the names of the images of this machine.
func CompleteImages(a *target.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), resource.CompletionTime)
		defer cancel()
		store, err := ImageStore(a)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		all, err := store.List(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, img := range all {
			names = append(names, img.Names...)
		}
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
