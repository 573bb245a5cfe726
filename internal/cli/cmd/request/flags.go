// Package request turns flags into the request for a sandbox or a command.
package request

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

const defaultOutputLimit = 10 << 20

// CompleteSandboxFlags offers images, templates, snapshots and workspaces for the flags
// of a new sandbox.
func CompleteSandboxFlags(a *target.Env, cmd *cobra.Command) {
	images := func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		names, _ := CompleteImages(a)(cmd, args, prefix)
		templates, _ := resource.CompleteOf(a, resource.TemplateNames)(cmd, args, prefix)
		for _, t := range templates {
			names = append(names, "template:"+t)
		}
		return append(names, "host"), cobra.ShellCompDirectiveNoFileComp
	}
	_ = cmd.RegisterFlagCompletionFunc("image", images)
	_ = cmd.RegisterFlagCompletionFunc("snapshot", resource.CompleteOf(a, resource.SnapshotNames))
	_ = cmd.RegisterFlagCompletionFunc("workspace", resource.CompleteOf(a, resource.WorkspaceNames))
}

// restartFlag is a restart policy, written as Docker does: no, on-failure,
// on-failure:5, always. It satisfies pflag.Value.
type restartFlag struct {
	policy sandbox.RestartPolicy
	most   int
}

func (r *restartFlag) Set(text string) error {
	policy, most, bounded := strings.Cut(text, ":")
	n, err := strconv.ParseUint(most, 10, 31)
	switch p := sandbox.RestartPolicy(policy); {
	case p == sandbox.RestartOnFailure && (!bounded || err == nil && n > 0):
		*r = restartFlag{p, int(n)}
	case !bounded && (p == sandbox.RestartNo || p == sandbox.RestartAlways):
		*r = restartFlag{policy: p}
	default:
		return fmt.Errorf("%q is not one of no, on-failure, on-failure:MAX and always", text)
	}
	return nil
}

func (r *restartFlag) String() string {
	if r.most > 0 {
		return fmt.Sprintf("%s:%d", r.policy, r.most)
	}
	return string(r.policy)
}

func (r *restartFlag) Type() string { return "policy" }

// CommandFlags say how a command is run; run and exec share them.
type CommandFlags struct {
	Env, EnvFiles []string
	Workdir, User string
	Interactive   bool
	Tty           bool
	Detach        bool
	Timeout       resource.DurationFlag
	Json          bool
	OutputLimit   resource.SizeFlag
	Keys          term.KeysFlag // that detach from a terminal
}

// Register registers the flags.
func (f *CommandFlags) Register(flags *pflag.FlagSet) {
	flags.SetInterspersed(false) // what follows the first word belongs to the command
	flags.StringArrayVarP(&f.Env, "env", "e", nil, "set a variable: NAME=VALUE, or NAME to pass on your own")
	flags.StringArrayVar(&f.EnvFiles, "env-file", nil, "read variables from a file, one NAME=VALUE per line")
	flags.StringVarP(&f.Workdir, "workdir", "w", "", "directory to start in, absolute; made if it is missing")
	flags.StringVarP(&f.User, "user", "u", "", "user to run as: NAME, UID, NAME:GROUP or UID:GID")
	flags.BoolVarP(&f.Interactive, "interactive", "i", false, "connect standard input; without it the command's standard input is empty")
	flags.BoolVarP(&f.Tty, "tty", "t", false, "run on a terminal")
	flags.BoolVarP(&f.Detach, "detach", "d", false, "run in the background")
	f.Keys.Register(flags)
	flags.Var(&f.Timeout, "timeout", "kill the command after this time, such as 30s; the exit code is then 124")
	flags.BoolVar(&f.Json, "json", false, "write one JSON object with the exit code and the output")
	f.OutputLimit = defaultOutputLimit
	flags.Var(&f.OutputLimit, "output-limit", "with --json, keep at most this much of each stream")
}

// Validate refuses what cannot go together.
func (f *CommandFlags) Validate(cmd *cobra.Command) error {
	switch {
	case f.Detach && (f.Interactive || f.Tty) && cmd.Name() != "run":
		return term.BadFlag("detach", "a command in the background has neither input nor terminal; leave out -i and -t")
	case f.Json && f.Tty:
		return term.BadFlag("json", "cannot be used with --tty")
	case f.Json && f.Detach:
		return term.BadFlag("json", "cannot be used with --detach; see: atoll ps --json")
	case !f.Json && cmd.Flags().Changed("output-limit"):
		return term.BadFlag("output-limit", "only works with --json")
	}
	return nil
}

// SandboxFlags say what sandbox to make.
type SandboxFlags struct {
	image, pull, platform string
	cpus                  float64
	memory, disk          resource.SizeFlag
	pids                  int64
	volumes, publish      []string
	workspace             workspaceFlags
	name, hostname        string
	labelList, labelFiles []string
	entrypoint            string
	Lifetime              resource.DurationFlag
	Idle                  resource.IdleFlag
	life                  LifetimeFlags
	snapshot              string
	remove, keep, Quiet   bool
	requireLimits         bool
	isolation             resource.IsolationFlag
	restart               restartFlag
	egress, secrets       []string
	redact                bool
	profile               string
}

// LifetimeFlags say what happens to a sandbox when its time is over.
type LifetimeFlags struct {
	Action, IdleAction string
	Wake               bool
}

// Register registers the flags.
func (f *LifetimeFlags) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Action, "lifetime-action", "", "sleep (on disk), stop (and keep its files) or delete (default delete)")
	flags.BoolVar(&f.Wake, "wake", false, "resume a paused sandbox when it is used")
	flags.StringVar(&f.IdleAction, "idle-action", "", "pause, sleep (on disk), stop (and keep its files) or delete (default stop)")
	resource.CompleteFlag(cmd, "lifetime-action", "sleep", "stop", "delete")
	resource.CompleteFlag(cmd, "idle-action", "pause", "sleep", "stop", "delete")
}

// RequireLimitsHelp explains --require-limits.
const RequireLimitsHelp = "fail if one of the limits is not enforced on this machine, instead of saying so"

// Register registers the flags.
func (f *SandboxFlags) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.life.Register(cmd)
	flags.StringVar(&f.image, "image", engine.HostImage, `image: "host" (this machine's programs, read-only), a reference such as debian:12, oci:DIR, docker-archive:FILE, dir:DIR or tar:FILE`)
	flags.StringVar(&f.pull, "pull", string(engine.PullMissing), "when to fetch the image: missing, always or never")
	flags.StringVar(&f.platform, "platform", "", "platform of the image, such as linux/amd64")
	flags.StringVar(&f.entrypoint, "entrypoint", "", "replace the image's entrypoint")
	flags.Float64Var(&f.cpus, "cpus", 0, "number of processors, such as 0.5")
	flags.VarP(&f.memory, "memory", "m", "memory, such as 512m")
	flags.Var(&f.disk, "disk", "size of its writable file system, such as 2g")
	flags.Int64Var(&f.pids, "pids", 0, "processes and threads alive at once")
	flags.BoolVar(&f.requireLimits, "require-limits", false, RequireLimitsHelp)
	f.isolation.Register(cmd)
	flags.StringArrayVarP(&f.volumes, "volume", "v", nil, "show a file or directory of this machine inside: HOST:GUEST or HOST:GUEST:ro")
	flags.StringArrayVarP(&f.publish, "publish", "p", nil, "show a port of the sandbox on the daemon's machine: [ADDRESS:][HOST:]GUEST (default address: 127.0.0.1; default host port: any that is free)")
	flags.StringSliceVar(&f.egress, "egress", nil, `hosts that the sandbox may reach, such as api.example.com or *.example.com:8443; "" for a network that reaches nothing (default: no network)`)
	flags.StringVar(&f.profile, "profile", "", "stored egress profile; see: atoll profile")
	flags.StringArrayVar(&f.secrets, "secret", nil, "stored secret that the sandbox may use: NAME[,env=VARIABLE][,host=HOST][,in=PLACE]; see: atoll secret")
	flags.BoolVar(&f.redact, "redact", false, "replace the values of its secrets (mode=env) with asterisks in the output of commands")
	f.workspace.register(flags)
	flags.StringVar(&f.name, "name", "", "name of the sandbox")
	flags.StringVar(&f.hostname, "hostname", "", "host name inside (default: the name)")
	flags.StringArrayVarP(&f.labelList, "label", "l", nil, "label it: KEY=VALUE")
	flags.StringArrayVar(&f.labelFiles, "label-file", nil, "read labels from a file, one KEY=VALUE per line")
	flags.Var(&f.Lifetime, "lifetime", "time after which to carry out --lifetime-action, such as 1h")
	flags.Var(&f.Idle, "idle", "time without use after which the daemon carries out --idle-action, or never (default for programs: 24h)")
	flags.StringVar(&f.snapshot, "snapshot", "", "start from this snapshot instead of an image")
	flags.BoolVar(&f.remove, "rm", true, "remove the sandbox when the command ends (the default without -d or --keep)")
	flags.Var(&f.restart, "restart", "with -d: start the command again when it has ended: no, on-failure[:MAX] or always")
	flags.BoolVar(&f.keep, "keep", false, "keep the sandbox when the command ends")
	flags.BoolVarP(&f.Quiet, "quiet", "q", false, "show no progress")
}

// validate refuses what cannot go together.
func (f *SandboxFlags) validate(cmd *cobra.Command, detach bool) error {
	rm := cmd.Flags().Changed("rm")
	switch {
	case rm && f.remove && f.keep:
		return term.BadFlag("keep", "cannot be used with --rm")
	case cmd.Flags().Changed("restart") && !detach:
		return term.BadFlag("restart", "only works with --detach")
	case rm && f.remove && detach && f.restart.policy != "" && f.restart.policy != sandbox.RestartNo:
		return term.BadFlag("restart", "cannot be used with --rm")
	case f.snapshot != "" && cmd.Flags().Changed("image"):
		return term.BadFlag("snapshot", "cannot be used with --image")
	case f.life.Action != "" && f.Lifetime == 0:
		return term.BadFlag("lifetime-action", "needs --lifetime")
	case f.life.IdleAction != "" && f.Idle <= 0:
		return term.BadFlag("idle-action", "needs --idle")
	case cmd.Flags().Changed("cpus") && f.cpus <= 0:
		return term.BadFlag("cpus", "%v is not a positive number", f.cpus)
	case cmd.Flags().Changed("egress") && f.profile != "":
		return term.BadFlag("egress", "cannot be used with --profile: write the hosts into the profile")
	case cmd.Flags().Changed("pids") && f.pids <= 0:
		return term.BadFlag("pids", "%d is not a positive number", f.pids)
	}
	return nil
}

// Build converts the flags and arguments of a command to a request.
func Build(a *target.Env, cmd *cobra.Command, sb *SandboxFlags, how *CommandFlags, args []string) (engine.RunRequest, error) {
	var req engine.RunRequest
	if err := sb.validate(cmd, how.Detach); err != nil {
		return req, err
	}
	spec := sandbox.Spec{
		Name: sb.name, Image: sb.image, User: how.User, Workdir: how.Workdir, Hostname: sb.hostname,
		Resources: sandbox.Resources{CPUs: sb.cpus, Memory: int64(sb.memory), Disk: int64(sb.disk), PIDs: sb.pids},
		Lifetime: sandbox.Lifetime{
			Timeout: time.Duration(sb.Lifetime), TimeoutAction: sandbox.IdleAction(sb.life.Action), Wakes: sb.life.Wake,
			Idle: max(0, time.Duration(sb.Idle)), IdleAction: sandbox.IdleAction(sb.life.IdleAction),
		},
		Snapshot: sb.snapshot, Provider: a.AskedProvider(), RequireLimits: sb.requireLimits, Isolation: sandbox.Isolation(sb.isolation),
	}
	if sb.snapshot != "" {
		spec.Image = ""
	}
	for _, text := range sb.volumes {
		m, err := volume(text)
		if err != nil {
			return req, err
		}
		spec.Mounts = append(spec.Mounts, m)
	}
	for _, text := range sb.publish {
		p, err := parsePublish(text)
		if err != nil {
			return req, err
		}
		spec.Ports = append(spec.Ports, p)
	}
	var err error
	if spec.Workspaces, err = sb.workspace.spec(); err != nil {
		return req, err
	}
	if spec.Env, err = Environment(a, how.EnvFiles, how.Env); err != nil {
		return req, err
	}
	if spec.Labels, err = Labels(sb.labelFiles, sb.labelList); err != nil {
		return req, err
	}
	if spec.Network, spec.Secrets, err = sb.network(cmd); err != nil {
		return req, err
	}
	spec.Redact = sb.redact
	req.Spec, req.Pull, req.Platform = spec, sb.pull, sb.platform
	req.Keep = sb.keep || !sb.remove
	if cmd.Flags().Changed("entrypoint") {
		req.Entrypoint = &sb.entrypoint
	}
	req.Command = CommandOf(a, how, args)
	if how.Detach && cmd.Name() == "run" && (sb.restart.policy != "" || !req.Keep && cmd.Flags().Changed("rm") || how.Interactive || how.Tty) {
		req.Spec.Main = &sandbox.MainCommand{Restart: sb.restart.policy, MaxRestarts: sb.restart.most, Remove: !req.Keep && cmd.Flags().Changed("rm")}
	}
	return req, nil
}

// network returns what the sandbox may reach, and the secrets it works with.
func (f *SandboxFlags) network(cmd *cobra.Command) (n sandbox.Network, refs []sandbox.SecretRef, err error) {
	n.Profile = f.profile
	if cmd.Flags().Changed("egress") {
		n.Egress = append([]string{}, f.egress...) // empty is something else than none
		local, _ := n.Local()
		if err := policy.CheckReach(local); err != nil {
			return n, nil, err
		}
	}
	for _, text := range f.secrets {
		r, err := secretRef(text)
		if err != nil {
			return n, nil, err
		}
		refs = append(refs, r)
	}
	return n, refs, nil
}

// CommandOf returns what to run with what flags say about it. Variables, user
// and directory of a run belong to its sandbox.
func CommandOf(a *target.Env, how *CommandFlags, args []string) sandbox.Command {
	cmd := sandbox.Command{Args: args, Stdin: how.Interactive, Timeout: time.Duration(how.Timeout), Background: how.Detach}
	if how.Tty {
		size := term.WindowSize(a.Terminal())
		cmd.TTY = &size
		kind, _ := a.LookupEnv("TERM")
		if kind == "" {
			kind = "xterm"
		}
		cmd.Env = map[string]string{"TERM": kind}
	}
	return cmd
}
