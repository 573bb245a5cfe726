// Package cli is Atoll's command line: it turns words into calls of the
// control plane and what comes back into text, JSON and exit codes.
//
// Data goes to standard output, prose to standard error. Nothing is opened,
// probed or built before a command runs, so that help and completion are quick.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// System is the node that the commands act on. It is opened when the first command
// needs it; everything in it opens as late as it can.
type System interface {
	// Engine returns the engine of the named provider. If attached is
	// set, the sandboxes it makes end with this process, however it ends.
	Engine(ctx context.Context, provider string, attached bool) (*engine.Engine, error)
	// Probe returns what the named provider can do here.
	Probe(ctx context.Context, provider string) (driver.Facts, error)
	// Trial returns what the conformance suite needs to test the named provider:
	// a function that opens it anew, and one to be called at the end.
	Trial(provider string) (open func(context.Context) (driver.Provider, error), end func() error, err error)
	localImages
	// Close closes everything that was opened. It ends no sandbox.
	Close() error
}

// ProviderInfo is what is known about a provider without opening it.
type ProviderInfo struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
	Warning string `json:"warning,omitempty"` // said whenever it runs something
}

// Env is where the commands of one run act: on this machine, or on a daemon.
type Env struct {
	*term.Term
	// Engine continues the command in the engine, and returns only if that fails.
	// The light program has it instead of Open and of what only App has. It is nil
	// if the engine is linked in, and in a client build for a system without
	// sandboxes, which uses the daemon in ATOLL_HOST.
	Engine func(stateDir string) error
	// Open opens the node whose state is kept in stateDir; empty means the user's
	// own. Close closes it. It is nil in a client.
	Open func(stateDir string) (System, error)
	// Providers are those there are, the default first.
	Providers []ProviderInfo
	// Version is the output of `atoll version`.
	Version Version

	stateDir string        // --state-dir
	provider string        // --provider
	direct   bool          // --no-daemon
	tenant   string        // --tenant
	system   System        // once it is open
	conn     *atoll.Client // of a daemon, once it was found
	client   *atoll.Client // conn, in the tenant of --tenant
	sessions bool          // the command names sessions and not sandboxes
	quiet    bool          // no warnings about new sandboxes
	patience patience      // with a daemon that is slow
}

// close ends what the commands have opened. It ends no sandbox.
func (a *Env) close() error {
	var err error
	if a.system != nil {
		err = a.system.Close()
	}
	if a.conn != nil {
		err = errors.Join(err, a.conn.Close())
	}
	return err
}

// App is the command line of one program.
type App struct {
	// Env is where its commands act.
	Env *Env
	// Up starts a daemon, which the command closes. It is nil in a client.
	Up func(ctx context.Context, opts UpOptions) (Daemon, error)
	// Restore replaces the database in a state directory by a backup, and returns
	// where it moved what it replaced. It is nil in a client.
	Restore func(ctx context.Context, stateDir, backup string) (replaced string, err error)
	// Accept makes a state directory usable although parts of it are missing, and
	// returns a sentence for each. It is nil in a client.
	Accept func(ctx context.Context, stateDir string) (lost []string, err error)
	// Machine is the program of a self-hosted machine. It is nil in a client.
	Machine MachineProgram
	// Program is the path of the program that the user called. Empty: this one.
	Program string
}

// Version says what this program is made of.
type Version struct {
	Atoll  string `json:"atoll"`
	Engine string `json:"engine,omitempty"` // of the sandbox kernel that is linked in
	Go     string `json:"go"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
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
	return a.Env.Finish(cmd, errors.Join(err, a.Env.close()))
}

const (
	groupBox     = "box"
	groupDaemon  = "daemon"
	groupMachine = "machine"
)

func (a *App) root() *cobra.Command {
	env := a.Env
	root := parent(&cobra.Command{
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
	}, runCommands{env}.runCmd(), runCommands{env}.createCmd(), processCommands{env}.execCmd(), processCommands{env}.shellCmd(), processCommands{env}.attachCmd(), processCommands{env}.terminalCmd(), listCommands{env}.lsCmd(), listCommands{env}.inspectCmd(), listCommands{env}.topCmd(), processCommands{env}.psCmd(), processCommands{env}.logsCmd(), processCommands{env}.killCmd(), copyCommands{env}.cpCmd(), portCommands{env}.portCmd(), streamCommands{env}.desktopCmd(), streamCommands{env}.streamCmd(), computerCommands{env}.computerCmd(), codeCommands{env}.codeCmd(), gitCommands{env}.gitCmd(), gitCommands{env}.searchCmd(), gitCommands{env}.patchCmd(), recordCommands{env}.recordCmd(), listCommands{env}.rmCmd(),
		lifecycleCommands{env}.pauseCmd(), lifecycleCommands{env}.resumeCmd(), lifecycleCommands{env}.stopCmd(), lifecycleCommands{env}.startCmd(), lifecycleCommands{env}.updateCmd(), lifecycleCommands{env}.forkCmd(), snapshotCommands{env}.snapshotCmd(), sessionCommands{env}.sessionCmd(),
		upCommands{env, a.Up}.upCmd(), upCommands{env, a.Up}.downCmd(), env.consoleCmd(), contextCommands{env}.contextCmd(), mcpCommands{env}.mcpCmd(), e2bCommands{env}.e2bCmd(), keyCommands{env}.keyCmd(), machineCommands{env, a.Machine, a.Program}.machineCmd(), nodeCommands{env}.nodeCmd(), tenantCommands{env}.tenantCmd(), workspaceCommands{env}.workspaceCmd(), profileCommands{env}.profileCmd(), policyCommands{env}.policyCmd(), secretCommands{env}.secretCmd(), profileCommands{env}.egressCmd(), eventCommands{env}.eventsCmd(), eventCommands{env}.auditCmd(), sessionCommands{env}.usageCmd(), stateCommands{env, a.Restore, a.Accept}.stateCmd(),
		imageCommands{env}.imageCmd(), templateCommands{env}.templateCmd(), providerCommands{env}.providerCmd(), providerCommands{env}.doctorCmd(),
		providerCommands{env}.microvmCmd(), env.versionCmd())
	root.AddCommand(foreign()...)
	root.AddGroup(
		&cobra.Group{ID: groupBox, Title: "Sandboxes:"},
		&cobra.Group{ID: groupDaemon, Title: "The daemon:"},
		&cobra.Group{ID: groupMachine, Title: "This machine:"})
	root.PersistentPreRunE = env.beginInEngine
	root.Version = env.versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&env.stateDir, "state-dir", "", "where Atoll keeps its state (default: $ATOLL_STATE_DIR, /var/lib/atoll for root, else ~/.local/state/atoll)")
	flags.StringVar(&env.provider, "provider", "", "provider for new sandboxes (default: $ATOLL_PROVIDER, else that of the daemon, else "+env.defaultProvider()+"; see: atoll provider ls)")
	flags.BoolVar(&env.direct, "no-daemon", false, "do not start a daemon in the background, even if the command needs one ($ATOLL_NO_DAEMON)")
	flags.StringVar(&env.tenant, "tenant", "", "act in this tenant, as the owner of the machine (default: your own; see: atoll tenant ls)")
	_ = root.RegisterFlagCompletionFunc("provider", env.completeProviders)
	_ = root.RegisterFlagCompletionFunc("tenant", env.completeTenants)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return term.Usage(cmd, err) })
	root.SetHelpCommandGroupID(groupMachine)
	root.SetCompletionCommandGroupID(groupMachine)
	completeWithoutPackage(root)
	return root
}

func (a *Env) defaultProvider() string {
	if len(a.Providers) == 0 {
		return ""
	}
	return a.Providers[0].Name
}

// chosenProvider returns the provider that the flag, else the environment,
// else the default names.
func (a *Env) chosenProvider() string {
	return cmp.Or(a.askedProvider(), a.defaultProvider())
}

// askedProvider returns the provider that the flag, else the environment names,
// empty if neither does.
func (a *Env) askedProvider() string {
	if a.provider != "" {
		return a.provider
	}
	name, _ := a.LookupEnv("ATOLL_PROVIDER")
	return name
}

// warningOf returns the warning to show before something runs on a provider.
func (a *Env) warningOf(provider string) string {
	for _, p := range a.Providers {
		if p.Name == provider {
			return p.Warning
		}
	}
	return ""
}

// node opens the node, once.
func (a *Env) node() (System, error) {
	if a.system != nil {
		return a.system, nil
	}
	if a.Open == nil {
		return nil, a.inEngine("nothing can run on this machine")
	}
	system, err := a.Open(a.stateDir)
	if err != nil {
		return nil, err
	}
	a.system = system
	return system, nil
}

// clientOnly is why something cannot be done here.
func clientOnly(what string) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Message: what + ": sandboxes need Linux, and this is the client for " + runtime.GOOS,
		Hint: "set ATOLL_HOST to the address of a daemon, such as https://HOST:7070, and ATOLL_KEY to a key of it",
	}
}

// openEngine opens the engine of the chosen provider.
func (a *Env) openEngine(ctx context.Context, attached bool) (*engine.Engine, error) {
	system, err := a.node()
	if err != nil {
		return nil, err
	}
	return system.Engine(ctx, a.chosenProvider(), attached)
}

// interruptible adapts a command that stops when the user interrupts it.
func interruptible(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		return run(ctx, args)
	}
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

// parent makes a command with subcommands: alone it shows its help, and an unknown subcommand
// is an error that names the nearest known ones.
func parent(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := "see: " + cmd.CommandPath() + " --help"
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "did you mean: " + cmd.CommandPath() + " " + strings.Join(near, " or ")
		}
		return &term.UsageError{Message: fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0]), Hint: hint}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(subcommands...)
	return cmd
}
