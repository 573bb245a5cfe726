package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

func (a listCommands) inspectCmd() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "inspect [flags] SANDBOX...", Short: "Show sandboxes in detail, as JSON", GroupID: groupBox,
		Long: `Inspect writes sandboxes as a JSON array: state and its reason, image, limits,
labels, lifetime, and how they ended. It shows neither their content nor the values
of environment variables.`,
		Example: `  atoll inspect demo
  atoll inspect --format '{{.State}}' demo`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeSandboxes,
	}
	cmd.Flags().StringVar(&format, "format", "", term.FormatHelp)
	cmd.RunE = interruptible(func(ctx context.Context, args []string) error {
		c, err := a.daemon(ctx)
		if err != nil {
			return err
		}
		if c == nil {
			return a.inspectHere(ctx, args, format)
		}
		return inspect(a.Env, format, args, func(name string) (sandbox.Sandbox, error) {
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
	t, err := a.target(ctx)
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
	return inspect(a.Env, format, args, func(name string) (sandbox.Sandbox, error) {
		s, ok := known[name]
		if !ok {
			return s, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "no such sandbox", Hint: "see what exists with: atoll ls"}
		}
		return s, nil
	})
}

// inspect shows what get finds, and says of each rest why it could not.
func inspect[T any](a *Env, format string, names []string, get func(name string) (T, error)) error {
	found, failed := []T{}, false
	for _, name := range names {
		s, err := get(name)
		if err != nil {
			failed = true
			a.Report(nil, err)
			continue
		}
		found = append(found, s)
	}
	var err error
	if format == "" {
		err = a.PrintJSON(found)
	} else if len(found) > 0 {
		err = term.Formatted(a.Term, format, found)
	}
	if err == nil && failed {
		return term.ExitCode(term.ExitFailure)
	}
	return err
}
