// Package cli is Atoll's command line: it turns words into calls of the
// control plane and what comes back into text, JSON and exit codes.
//
// Data goes to standard output, prose to standard error. Nothing is opened,
// probed or built before a command runs, so that help and completion are quick.
package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/cmd/host"
	"github.com/atoll-run/atoll/internal/cli/cmd/operate"
	"github.com/atoll-run/atoll/internal/cli/cmd/sandboxes"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// App is the command line of one program.
type App struct {
	// Env is where its commands act.
	Env *target.Env
	// Up starts a daemon, which the command closes. It is nil in a client.
	Up func(ctx context.Context, opts operate.UpOptions) (operate.Daemon, error)
	// Restore replaces the database in a state directory by a backup, and returns
	// where it moved the former state. It is nil in a client.
	Restore func(ctx context.Context, stateDir, backup string) (replaced string, err error)
	// Accept makes a state directory usable although parts of it are missing, and
	// returns a sentence for each. It is nil in a client.
	Accept func(ctx context.Context, stateDir string) (lost []string, err error)
	// Machine is the program of a self-hosted machine. It is nil in a client.
	Machine operate.MachineProgram
	// Program is the path of the program that the user called. Empty: this one.
	Program string
}

// Main runs the command that args name and returns the exit code for it.
func (a *App) Main(ctx context.Context, args []string) int {
	// A reader of ours that goes away must be an error to handle, not the
	// death of this process: a sandbox may depend on it.
	signal.Ignore(syscall.SIGPIPE)
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.Env.Stdin)
	root.SetOut(term.VisibleOnly(a.Env.Stdout)) // for help and completions
	root.SetErr(term.VisibleOnly(a.Env.Stderr))
	cmd, err := root.ExecuteContextC(ctx)
	return a.Env.Finish(cmd, errors.Join(err, a.Env.Close()))
}

func (a *App) root() *cobra.Command {
	env := a.Env
	root := resource.Parent(&cobra.Command{
		Use:   "atoll",
		Short: "Sandboxes for AI agents, from one program",
		Long: `Atoll runs commands in sandboxes: small isolated machines, each with its own
kernel. They start in milliseconds, and there is nothing else to install.

A sandbox sees no file, process or network of this machine unless you give it
one.`,
		Example: `  atoll run -- echo hello
  atoll doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}, slices.Concat(sandboxes.Commands(env), operate.Commands(env, operate.Parts{Up: a.Up, Restore: a.Restore, Accept: a.Accept, Machine: a.Machine, Program: a.Program}), host.Commands(env), []*cobra.Command{versionCmd(env)})...)
	root.AddCommand(foreign()...)
	root.AddGroup(
		&cobra.Group{ID: resource.GroupSandbox, Title: "Sandboxes:"},
		&cobra.Group{ID: resource.GroupDaemon, Title: "The daemon:"},
		&cobra.Group{ID: resource.GroupMachine, Title: "This machine:"})
	root.PersistentPreRunE = env.BeginInEngine
	root.Version = versionLine(env)
	root.SetVersionTemplate("{{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&env.StateDir, "state-dir", "", "where Atoll keeps its state (default: $ATOLL_STATE_DIR, /var/lib/atoll for root, else ~/.local/state/atoll)")
	flags.StringVar(&env.Provider, "provider", "", "provider for new sandboxes (default: $ATOLL_PROVIDER, else that of the daemon, else "+env.DefaultProvider()+"; see: atoll provider ls)")
	flags.BoolVar(&env.Direct, "no-daemon", false, "do not start a daemon in the background, even if the command needs one ($ATOLL_NO_DAEMON)")
	flags.StringVar(&env.Tenant, "tenant", "", "act in this tenant, as the owner of the machine (default: your own; see: atoll tenant ls)")
	_ = root.RegisterFlagCompletionFunc("provider", resource.CompleteProviders(env))
	_ = root.RegisterFlagCompletionFunc("tenant", resource.CompleteTenants(env))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
			var u *term.UsageError
			if unknown := cmd.ValidateArgs(words); errors.As(unknown, &u) { // a command that does not exist has no flags
				return unknown
			}
		}
		return term.Usage(cmd, err)
	})
	root.SetHelpCommandGroupID(resource.GroupMachine)
	root.SetCompletionCommandGroupID(resource.GroupMachine)
	completeWithoutPackage(root)
	return root
}

// elsewhere maps docker's commands to Atoll's names for them.
var elsewhere = map[string]string{
	"images": "atoll image ls", "login": "docker login; Atoll reads the credentials that docker and podman keep", "pull": "atoll image pull", "rmi": "atoll image rm", "load": "atoll image import",
	"build": "atoll template build", "volume": "atoll workspace", "network": "atoll profile", "info": "atoll doctor",
	"restart": "atoll stop, then atoll start", "commit": "atoll snapshot create", "container": "atoll ls, and its other commands without a noun",
	"system":  "atoll state, and atoll doctor",
	"compose": "atoll create for each service, or atoll template build for an image of its own; files of compose are not read",
	"wait":    "atoll attach SANDBOX COMMAND, which ends with the command and has its exit code",
	"push":    "atoll template build, or atoll snapshot create; Atoll pushes to no registry",
	"tag":     "atoll image import --name NAME, or atoll template tag",
}

// foreign are hidden commands that name Atoll's, whatever flags they get.
func foreign() (all []*cobra.Command) {
	for _, name := range slices.Sorted(maps.Keys(elsewhere)) {
		all = append(all, &cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return &term.UsageError{Message: fmt.Sprintf("there is no command %q", cmd.CommandPath()), Hint: "use: " + elsewhere[name]}
			},
		})
	}
	return all
}
