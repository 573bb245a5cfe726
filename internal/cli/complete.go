package cli

import (
	"context"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// completionTime limits how long a shell waits for names.
const completionTime = 2 * time.Second

// completeSandbox offers the names of sandboxes for the first word, and leaves
// the rest to the shell.
func (a *Env) completeSandbox(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeSandboxes(cmd, args, prefix)
}

// completeSandboxes offers the names of sandboxes for every word.
func (a *Env) completeSandboxes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
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
		names = append(names, s.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *Env) completeProviders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range a.Providers {
		names = append(names, p.Name+"\t"+p.Summary)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeTenants offers the names of tenants to the owner of the machine.
func (a *Env) completeTenants(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	a.tenant = ""
	c, err := a.daemon(ctx)
	if err != nil || c == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := c.Admin().Tenants(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, 0, len(all))
	for _, t := range all {
		names = append(names, t.ID)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeFlag offers fixed values for a flag.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeOf offers names that the daemon knows, if one runs.
func (a *Env) completeOf(names func(context.Context, *atoll.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		c, err := a.daemon(ctx)
		if err != nil || c == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := names(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

func snapshotNames(ctx context.Context, c *atoll.Client) (names []string, err error) {
	for s, err := range c.Snapshots(ctx, nil) {
		if err != nil {
			return names, err
		}
		names = append(names, s.Name)
	}
	return names, nil
}

func workspaceNames(ctx context.Context, c *atoll.Client) (names []string, err error) {
	all, err := c.Workspaces(ctx)
	for _, w := range all {
		names = append(names, w.Name)
	}
	return names, err
}

func templateNames(ctx context.Context, c *atoll.Client) (names []string, err error) {
	all, err := c.Templates(ctx)
	for _, t := range all {
		names = append(names, t.Name+":"+t.Tag)
	}
	return names, err
}

// templateBareNames are those without tags.
func templateBareNames(ctx context.Context, c *atoll.Client) (names []string, err error) {
	all, err := c.Templates(ctx)
	for _, t := range all {
		names = append(names, t.Name)
	}
	return slices.Compact(names), err
}

// completePlace offers sandboxes as SANDBOX: in addition to the shell's files,
// and then the files in the sandbox.
func (a *Env) completePlace(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if box, p := splitPlace(prefix); box != "" {
		return a.completeInside(cmd, box, p)
	}
	if strings.Contains(prefix, "/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, directive := a.completeSandboxes(cmd, args, prefix)
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

// completable matches the paths that are offered. Programs in the sandbox
// choose their names, and the shell may insert them into a command line
// unquoted.
var completable = regexp.MustCompile(`^[A-Za-z0-9._/+@%=,-]+$`)

// completeInside offers the files of a sandbox that runs.
func (a *Env) completeInside(cmd *cobra.Command, name, prefix string) (places []string, directive cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	box, err := a.find(ctx, name)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	dir, _ := path.Split(prefix)
	directive = cobra.ShellCompDirectiveNoFileComp
	for f, err := range box.Files().List(ctx, inside(dir), driver.ListOptions{}) {
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

// completeBoxFlags offers images, templates, snapshots and workspaces for the flags
// of a new sandbox.
func (a *Env) completeBoxFlags(cmd *cobra.Command) {
	images := func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		names, _ := imageCommands{a}.completeImages(cmd, args, prefix)
		templates, _ := a.completeOf(templateNames)(cmd, args, prefix)
		for _, t := range templates {
			names = append(names, "template:"+t)
		}
		return append(names, "host"), cobra.ShellCompDirectiveNoFileComp
	}
	_ = cmd.RegisterFlagCompletionFunc("image", images)
	_ = cmd.RegisterFlagCompletionFunc("snapshot", a.completeOf(snapshotNames))
	_ = cmd.RegisterFlagCompletionFunc("workspace", a.completeOf(workspaceNames))
}
