package sandboxes

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func (a sessionCommands) targetsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "targets SESSION", Short: "List the providers that a session can move to", Args: cobra.ExactArgs(1), ValidArgsFunction: a.complete,
		Long: `Targets lists providers, best first, and whether they could serve a session. CARRIES
tells what a move would take along. For a provider that cannot serve the session, NOTES
tells why.`,
		Example: `  atoll session targets notes`,
	}
	return resource.DaemonList(a.Env, cmd, "PROVIDER FITS CARRIES NOTES", func(ctx context.Context, c *atoll.Client, args []string) ([]durable.SessionTarget, error) {
		s, err := c.Sessions().Get(ctx, args[0])
		if err != nil {
			return nil, err
		}
		return s.Targets(ctx)
	}, func(t durable.SessionTarget) []string {
		fits := "no"
		switch {
		case t.Current:
			fits = "current"
		case t.Fits:
			fits = "yes"
		}
		return []string{t.Provider, fits, term.OrDash(t.Carries), term.OrDash(strings.Join(t.Reasons, "; "))}
	})
}

func (a sessionCommands) swapCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "swap SESSION PROVIDER", Short: "Move a session to another provider with its files", Args: cobra.ExactArgs(2), ValidArgsFunction: a.complete,
		Long: `Swap moves a session to a sandbox of another provider, with its workspaces. A session
without a workspace takes the files below /workspace along. Processes and other files
do not go along. Requests for the session wait meanwhile. If a step fails, the session
stays where it is. The provider "default" is the one that the session began with.`,
		Example: `  atoll session swap notes docker`,
	}
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (out durable.Swapped, err error) {
		s, err := c.Sessions().Get(ctx, args[0])
		if err != nil {
			return out, err
		}
		if out, err = s.Swap(ctx, args[1]); err != nil || out.Swapped {
			return out, err
		}
		return out, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "session.swap", Subject: args[1], Message: "it cannot serve the session: " + out.Reason,
			Hint: "list the others with: atoll session targets " + args[0],
		}
	}, func(o durable.Swapped) error {
		return a.Printf("%s, %s\n", o.Receipt.Provider, strings.TrimPrefix(outcome("", o.Receipt), ": "))
	})
}

func (a sessionCommands) runOnCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run-on SESSION PROVIDER [--] COMMAND [ARG...]", Short: "Run a command on another provider without moving the session",
		Args: cobra.MinimumNArgs(3), ValidArgsFunction: a.complete,
		Long: `Run-on makes a sandbox on another provider with the settings of a session and a copy of
the files below /workspace, runs a command in it and removes it. What the command
changes is dropped. The exit codes are the same as those of atoll run.`,
		Example: `  atoll session run-on notes docker -- uname -r`,
	}
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		s, err := c.Sessions().Get(ctx, args[0])
		if err != nil {
			return err
		}
		words := args[2:]
		if words[0] == "--" {
			words = words[1:]
		}
		res, err := s.RunOn(ctx, args[1], sandbox.Command{Args: words}, atoll.RunOptions{})
		if err != nil {
			return err
		}
		if _, err := a.Stdout.Write(res.Stdout); err != nil {
			return err
		}
		if _, err := a.Stderr.Write(res.Stderr); err != nil {
			return err
		}
		if code := codeFor(res.Exit); code != 0 {
			return term.ExitCode(code)
		}
		return nil
	})
	return cmd
}
