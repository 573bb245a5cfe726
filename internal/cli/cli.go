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
	"io"
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

// App is one run of the command line.
type App struct {
	// Engine continues the command in the engine, and returns only if that fails.
	// The light program has it instead of all functions up to Machine. It is nil
	// if the engine is linked in, and in a client build for a system without
	// sandboxes, which uses the daemon in ATOLL_HOST.
	Engine func(stateDir string) error
	// Open opens the node whose state is kept in stateDir; empty means the user's
	// own. The App closes it. It is nil in a client.
	Open func(stateDir string) (System, error)
	// Up starts a daemon, which the App closes. It is nil in a client.
	Up func(ctx context.Context, opts UpOptions) (Daemon, error)
	// Restore replaces the database in a state directory by a backup, and returns
	// where it moved the former state. It is nil in a client.
	Restore func(ctx context.Context, stateDir, backup string) (replaced string, err error)
	// Accept makes a state directory usable although parts of it are missing, and
	// returns a sentence for each. It is nil in a client.
	Accept func(ctx context.Context, stateDir string) (lost []string, err error)
	// Machine is the program of a self-hosted machine. It is nil in a client.
	Machine MachineProgram
	// Program is the path of the program that the user called. Empty: this one.
	Program string
	// Providers are those there are, the default first.
	Providers []ProviderInfo
	// Version is the output of `atoll version`.
	Version Version

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)

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
	root.SetIn(a.Stdin)
	root.SetOut(&visibleWriter{w: a.Stdout}) // for help and completions
	root.SetErr(&visibleWriter{w: a.Stderr})
	cmd, err := root.ExecuteContextC(ctx)
	if a.system != nil {
		err = errors.Join(err, a.system.Close())
	}
	if a.conn != nil {
		err = errors.Join(err, a.conn.Close())
	}
	return a.finish(cmd, err)
}

const (
	groupBox     = "box"
	groupDaemon  = "daemon"
	groupMachine = "machine"
)

func (a *App) root() *cobra.Command {
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
	}, runCommands{a}.runCmd(), runCommands{a}.createCmd(), processCommands{a}.execCmd(), processCommands{a}.shellCmd(), processCommands{a}.attachCmd(), processCommands{a}.terminalCmd(), listCommands{a}.lsCmd(), listCommands{a}.inspectCmd(), listCommands{a}.topCmd(), processCommands{a}.psCmd(), processCommands{a}.logsCmd(), processCommands{a}.killCmd(), copyCommands{a}.cpCmd(), portCommands{a}.portCmd(), streamCommands{a}.desktopCmd(), streamCommands{a}.streamCmd(), computerCommands{a}.computerCmd(), codeCommands{a}.codeCmd(), gitCommands{a}.gitCmd(), gitCommands{a}.searchCmd(), gitCommands{a}.patchCmd(), recordCommands{a}.recordCmd(), listCommands{a}.rmCmd(),
		lifecycleCommands{a}.pauseCmd(), lifecycleCommands{a}.resumeCmd(), lifecycleCommands{a}.stopCmd(), lifecycleCommands{a}.startCmd(), lifecycleCommands{a}.updateCmd(), lifecycleCommands{a}.forkCmd(), snapshotCommands{a}.snapshotCmd(), sessionCommands{a}.sessionCmd(),
		upCommands{a}.upCmd(), upCommands{a}.downCmd(), a.consoleCmd(), contextCommands{a}.contextCmd(), mcpCommands{a}.mcpCmd(), e2bCommands{a}.e2bCmd(), keyCommands{a}.keyCmd(), machineCommands{a}.machineCmd(), nodeCommands{a}.nodeCmd(), tenantCommands{a}.tenantCmd(), workspaceCommands{a}.workspaceCmd(), profileCommands{a}.profileCmd(), policyCommands{a}.policyCmd(), secretCommands{a}.secretCmd(), profileCommands{a}.egressCmd(), eventCommands{a}.eventsCmd(), eventCommands{a}.auditCmd(), sessionCommands{a}.usageCmd(), stateCommands{a}.stateCmd(),
		imageCommands{a}.imageCmd(), templateCommands{a}.templateCmd(), providerCommands{a}.providerCmd(), providerCommands{a}.doctorCmd(),
		providerCommands{a}.microvmCmd(), a.versionCmd())
	root.AddCommand(foreign()...)
	root.AddGroup(
		&cobra.Group{ID: groupBox, Title: "Sandboxes:"},
		&cobra.Group{ID: groupDaemon, Title: "The daemon:"},
		&cobra.Group{ID: groupMachine, Title: "This machine:"})
	root.PersistentPreRunE = a.beginInEngine
	root.Version = a.versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&a.stateDir, "state-dir", "", "where Atoll keeps its state (default: $ATOLL_STATE_DIR, /var/lib/atoll for root, else ~/.local/state/atoll)")
	flags.StringVar(&a.provider, "provider", "", "provider for new sandboxes (default: $ATOLL_PROVIDER, else that of the daemon, else "+a.defaultProvider()+"; see: atoll provider ls)")
	flags.BoolVar(&a.direct, "no-daemon", false, "do not start a daemon in the background, even if the command needs one ($ATOLL_NO_DAEMON)")
	flags.StringVar(&a.tenant, "tenant", "", "act in this tenant, as the owner of the machine (default: your own; see: atoll tenant ls)")
	_ = root.RegisterFlagCompletionFunc("provider", a.completeProviders)
	_ = root.RegisterFlagCompletionFunc("tenant", a.completeTenants)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err) })
	root.SetHelpCommandGroupID(groupMachine)
	root.SetCompletionCommandGroupID(groupMachine)
	completeWithoutPackage(root)
	return root
}

func (a *App) defaultProvider() string {
	if len(a.Providers) == 0 {
		return ""
	}
	return a.Providers[0].Name
}

// chosenProvider returns the provider that the flag, else the environment,
// else the default names.
func (a *App) chosenProvider() string {
	return cmp.Or(a.askedProvider(), a.defaultProvider())
}

// askedProvider returns the provider that the flag, else the environment names,
// empty if neither does.
func (a *App) askedProvider() string {
	if a.provider != "" {
		return a.provider
	}
	name, _ := a.LookupEnv("ATOLL_PROVIDER")
	return name
}

// warningOf returns the warning to show before something runs on a provider.
func (a *App) warningOf(provider string) string {
	for _, p := range a.Providers {
		if p.Name == provider {
			return p.Warning
		}
	}
	return ""
}

// warn says it, unless there is nothing to say.
func (a *App) warn(warning string) {
	if warning != "" {
		a.say("warning", warning)
	}
}

// node opens the node, once.
func (a *App) node() (System, error) {
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
func (a *App) openEngine(ctx context.Context, attached bool) (*engine.Engine, error) {
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
				return &usageError{message: fmt.Sprintf("there is no command %q", cmd.CommandPath()), hint: "use: " + elsewhere[name]}
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
		return &usageError{message: fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0]), hint: hint}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(subcommands...)
	return cmd
}
