package sandboxes

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

func (a listCommands) inspectCmd() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "inspect [flags] SANDBOX...", Short: "Show sandboxes in detail, as JSON", GroupID: resource.GroupSandbox,
		Long: `Inspect writes sandboxes as a JSON array: state and its reason, image, limits,
labels, lifetime, and how they ended. It shows neither their content nor the values
of environment variables.`,
		Example: `  atoll inspect demo
  atoll inspect --format '{{.State}}' demo`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().StringVar(&format, "format", "", term.FormatHelp)
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		c, err := a.Daemon(ctx)
		if err != nil {
			return err
		}
		if c == nil {
			return a.inspectHere(ctx, args, format)
		}
		return resource.Inspect(a.Env, format, args, func(name string) (sandbox.Sandbox, error) {
			s, err := c.Get(ctx, name)
			if err != nil {
				return sandbox.Sandbox{}, err
			}
			return s.Info(), nil
		})
	})
	return cmd
}

// inspectHere shows what this machine knows of sandboxes without a daemon.
func (a listCommands) inspectHere(ctx context.Context, args []string, format string) error {
	t, err := a.Sandboxes(ctx)
	if err != nil {
		return err
	}
	all, err := t.List(ctx)
	if err != nil {
		return err
	}
	known := map[string]sandbox.Sandbox{}
	for _, s := range all {
		known[string(s.ID)] = s
	}
	for _, s := range all { // a name goes before an id
		known[s.Name] = s
	}
	return resource.Inspect(a.Env, format, args, func(name string) (sandbox.Sandbox, error) {
		s, ok := known[name]
		if !ok {
			return s, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "no such sandbox", Hint: "see what exists with: atoll ls"}
		}
		return s, nil
	})
}
