package sandboxes

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// creator returns the target of `atoll create`: the daemon, or this process with
// --no-daemon.
func (a runCommands) creator(ctx context.Context, req *engine.RunRequest) (target.Sandboxes, error) {
	if a.NoDaemon() {
		return a.RunnerFor(ctx, req, true)
	}
	c, err := a.MustDaemon(ctx)
	if err != nil {
		return nil, err
	}
	return a.SandboxesOf(c), nil
}

func (a runCommands) createCmd() *cobra.Command {
	var sandboxFlags request.SandboxFlags
	var how request.CommandFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Make a sandbox that stays, with no command in it",
		Long: `Create makes a sandbox and prints its name. Nothing runs in it, not even the
image's own command, until you run atoll exec; see also: atoll run -d. The daemon
manages the sandbox and remembers its settings when it is stopped and started.

If standard output is not a terminal, so that a program may have made the sandbox,
it is stopped after 24 hours without use, and keeps its files. A running command
counts as use. --idle and --lifetime say otherwise; atoll ls shows it.`,
		Example: `  atoll create --name demo --idle 10m --idle-action sleep
  atoll exec demo -- python3 --version`,
		GroupID: resource.GroupSandbox,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && sandbox.ValidateName(args[0]) == nil {
				return &term.UsageError{Message: "atoll create takes no arguments, and was given \"" + args[0] + "\"", Hint: "to choose the name: atoll create --name " + args[0]}
			}
			return cobra.NoArgs(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&how.Env, "env", "e", nil, "set a variable: NAME=VALUE, or NAME to pass on your own")
	flags.StringArrayVar(&how.EnvFiles, "env-file", nil, "read variables from a file, one NAME=VALUE per line")
	flags.StringVarP(&how.Workdir, "workdir", "w", "", "directory that commands start in, absolute; made if it is missing")
	flags.StringVarP(&how.User, "user", "u", "", "user that commands run as: NAME, UID, NAME:GROUP or UID:GID")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	sandboxFlags.Register(cmd)
	for _, name := range []string{"rm", "keep", "entrypoint", "restart"} { // it always stays, and runs nothing
		_ = flags.MarkHidden(name)
	}
	request.CompleteSandboxFlags(a.Env, cmd)
	resource.CompleteFlag(cmd, "pull", "missing", "always", "never")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"rm", "keep", "entrypoint", "restart"} {
			if cmd.Flags().Changed(name) {
				return term.BadFlag(name, "only works with: atoll run")
			}
		}
		how.Detach = true
		req, err := request.Build(a.Env, cmd, &sandboxFlags, &how, nil)
		if err != nil {
			return err
		}
		none := ""
		req.Entrypoint = &none
		t, err := a.creator(cmd.Context(), &req)
		if err != nil {
			return err
		}
		a.Quiet = sandboxFlags.Quiet
		if !a.Quiet {
			a.Warn(t.Warning(cmd.Context(), req.Spec.Provider))
			if req.Spec.Network.Asked() {
				warnEgress(cmd.Context(), a.Env)
			}
		}
		a.limitForgotten(t, &sandboxFlags, &req.Spec)
		made, err := a.startDetached(cmd.Context(), t, req, sandboxFlags.Quiet)
		switch {
		case err != nil:
			return err
		case asJSON:
			info, err := infoOf(cmd.Context(), t, made)
			if err != nil {
				return err
			}
			return a.PrintJSON(info)
		}
		return a.Println(made.Name())
	}
	return cmd
}

// infoOf describes a sandbox that was just made.
func infoOf(ctx context.Context, t target.Sandboxes, made target.Sandbox) (sandbox.Sandbox, error) {
	if r, ok := made.(target.RemoteSandbox); ok {
		return r.Info(), nil
	}
	all, err := t.List(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	for _, s := range all {
		if s.Name == made.Name() {
			s.Limits = made.Limits()
			return s, nil
		}
	}
	return sandbox.Sandbox{}, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: made.Name(), Message: "the sandbox is gone already"}
}
