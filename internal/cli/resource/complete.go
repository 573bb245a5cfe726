package resource

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/target"
)

// CompletionTime limits how long a shell waits for names.
const CompletionTime = 2 * time.Second

// CompleteSandbox offers the names of sandboxes for the first word, and leaves
// the rest to the shell.
func CompleteSandbox(a *target.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return CompleteSandboxes(a)(cmd, args, prefix)
	}
}

// CompleteSandboxes offers the names of sandboxes for every word.
func CompleteSandboxes(a *target.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), CompletionTime)
		defer cancel()
		t, err := a.Sandboxes(ctx)
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
}

// CompleteProviders offers the names of the providers that this program knows.
func CompleteProviders(a *target.Env) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, p := range a.Providers {
			names = append(names, p.Name+"\t"+p.Summary)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteTenants offers the names of tenants to the owner of the machine.
func CompleteTenants(a *target.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), CompletionTime)
		defer cancel()
		a.Tenant = ""
		c, err := a.Daemon(ctx)
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
}

// CompleteFlag offers fixed values for a flag.
func CompleteFlag(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteOf offers names that the daemon knows, if one runs.
func CompleteOf(a *target.Env, names func(context.Context, *atoll.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), CompletionTime)
		defer cancel()
		c, err := a.Daemon(ctx)
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

// SnapshotNames are the names of the snapshots of a daemon.
func SnapshotNames(ctx context.Context, c *atoll.Client) (names []string, err error) {
	for s, err := range c.Snapshots(ctx, nil) {
		if err != nil {
			return names, err
		}
		names = append(names, s.Name)
	}
	return names, nil
}

// WorkspaceNames are the names of the workspaces of a daemon.
func WorkspaceNames(ctx context.Context, c *atoll.Client) (names []string, err error) {
	all, err := c.Workspaces(ctx)
	for _, w := range all {
		names = append(names, w.Name)
	}
	return names, err
}

// TemplateNames are the names of the templates of a daemon, with their tags.
func TemplateNames(ctx context.Context, c *atoll.Client) (names []string, err error) {
	all, err := c.Templates(ctx)
	for _, t := range all {
		names = append(names, t.Name+":"+t.Tag)
	}
	return names, err
}

// TemplateBareNames are those without tags.
func TemplateBareNames(ctx context.Context, c *atoll.Client) (names []string, err error) {
	all, err := c.Templates(ctx)
	for _, t := range all {
		names = append(names, t.Name)
	}
	return slices.Compact(names), err
}
