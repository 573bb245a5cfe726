package sandboxes

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// lifecycleCommands are atoll stop, start, pause, resume, update and fork.
type lifecycleCommands struct{ *target.Env }

func (a lifecycleCommands) stopCmd() *cobra.Command {
	grace := resource.DurationFlag(10 * time.Second)
	cmd := &cobra.Command{
		Use:   "stop [flags] SANDBOX...",
		Short: "Stop sandboxes and keep their files if possible",
		Long: `Stop sends SIGTERM to the running commands, waits until they have ended or the grace
period is over, and ends the sandbox. It prints the names of the stopped sandboxes.

If the provider can save files, the daemon keeps those of the sandbox until it is
started again with atoll start. Otherwise, and without a daemon, the sandbox is
removed, and stop says so.`,
		Example: `  atoll stop demo
  atoll start demo`,
		GroupID: resource.GroupSandbox,
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().VarP(&grace, "time", "t", "how long commands may take to end")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		return a.each(args, func(name string) (string, error) {
			b, err := a.Find(ctx, name)
			if err != nil {
				return "", err
			}
			kept, err := b.Stop(ctx, time.Duration(grace))
			if err == nil && !kept {
				a.Say("note", b.Name()+" is removed: its files could not be kept")
			}
			return b.Name(), err
		})
	})
	return cmd
}

// each calls a function for every name and prints the names that succeeded.
func (a lifecycleCommands) each(names []string, do func(name string) (string, error)) error {
	for _, name := range names {
		done, err := do(name)
		if err != nil {
			return err
		}
		if err := a.Println(done); err != nil {
			return err
		}
	}
	return nil
}

// changeCmd makes a command that changes the state of sandboxes, which takes a
// daemon.
func (a lifecycleCommands) changeCmd(cmd *cobra.Command, change func(context.Context, *atoll.Sandbox) (sandbox.Sandbox, error)) *cobra.Command {
	var asJSON bool
	cmd.GroupID, cmd.Args, cmd.ValidArgsFunction = resource.GroupSandbox, cobra.MinimumNArgs(1), resource.CompleteSandboxes(a.Env)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		var all []sandbox.Sandbox
		for _, name := range args {
			s, err := c.Get(ctx, name)
			if err != nil {
				return err
			}
			info, err := change(ctx, s)
			if err != nil {
				return err
			}
			target.NoteReason(a.Env, info)
			all = append(all, info)
		}
		if asJSON {
			return a.PrintJSON(all)
		}
		for _, info := range all {
			if err := a.Println(info.Name); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

func (a lifecycleCommands) startCmd() *cobra.Command {
	return a.changeCmd(&cobra.Command{
		Use: "start [flags] SANDBOX...", Short: "Start stopped sandboxes again, with their files",
		Example: `  atoll start demo`,
	}, func(ctx context.Context, s *atoll.Sandbox) (sandbox.Sandbox, error) { return s.Start(ctx) })
}

func (a lifecycleCommands) pauseCmd() *cobra.Command {
	var toDisk bool
	cmd := a.changeCmd(&cobra.Command{
		Use: "pause [flags] SANDBOX...", Short: "Freeze sandboxes",
		Long: `Pause freezes sandboxes. Processes, memory and connections stay, and nothing uses a
processor. With --to-disk the state is written to disk, and memory is freed too. The
lifetime of a paused sandbox stands still. To continue: atoll resume.`,
		Example: `  atoll pause demo
  atoll pause --to-disk demo`,
	}, func(ctx context.Context, s *atoll.Sandbox) (sandbox.Sandbox, error) {
		if toDisk {
			return s.Pause(ctx, sandbox.PauseDisk)
		}
		return s.Pause(ctx, sandbox.PauseMemory)
	})
	cmd.Flags().BoolVar(&toDisk, "to-disk", false, "write the state to disk and free the memory")
	return cmd
}

func (a lifecycleCommands) resumeCmd() *cobra.Command {
	return a.changeCmd(&cobra.Command{
		Use: "resume [flags] SANDBOX...", Aliases: []string{"unpause"}, Short: "Resume paused sandboxes",
		Example: `  atoll resume demo`,
	}, func(ctx context.Context, s *atoll.Sandbox) (sandbox.Sandbox, error) { return s.Resume(ctx) })
}

// changes are the flags of update that say what to change.
var changes = []string{"cpus", "memory", "disk", "pids", "label", "unlabel", "lifetime", "lifetime-action", "wake", "idle", "idle-action"}

func (a lifecycleCommands) updateCmd() *cobra.Command {
	var cpus float64
	var memory, disk resource.SizeFlag
	var pids int64
	var labelList, unlabel, egress []string
	var lifetime, idle string
	var life request.LifetimeFlags
	var requireLimits bool
	cmd := &cobra.Command{
		Use: "update [flags] SANDBOX...", Short: "Change limits, labels, lifetime or idle policy of sandboxes",
		Long: `Update changes the given settings and leaves the rest. A new lifetime starts now;
"never" removes it. New limits of a stopped sandbox apply when it is started.`,
		Example: `  atoll update --memory 1g --label team=red demo
  atoll update --idle 10m --idle-action sleep demo
  atoll update --lifetime never --unlabel team demo
  atoll update --egress api.example.com,mirror.example.com demo`,
	}
	a.changeCmd(cmd, func(ctx context.Context, s *atoll.Sandbox) (sandbox.Sandbox, error) {
		switch {
		case !cmd.Flags().Changed("egress") && !slices.ContainsFunc(changes, cmd.Flags().Changed):
			return sandbox.Sandbox{}, &term.UsageError{Message: "nothing to change", Hint: "for example: atoll update --memory 1g " + s.Name()}
		case cmd.Flags().Changed("cpus") && cpus <= 0:
			return sandbox.Sandbox{}, term.BadFlag("cpus", "%v is not a positive number", cpus)
		case cmd.Flags().Changed("pids") && pids <= 0:
			return sandbox.Sandbox{}, term.BadFlag("pids", "%d is not a positive number", pids)
		}
		c := sandbox.Change{Resources: sandbox.Resources{CPUs: cpus, Memory: int64(memory), Disk: int64(disk), PIDs: pids}, RequireLimits: requireLimits}
		var err error
		l := &c.Lifetime
		if l.Timeout, err = span(cmd, "lifetime", lifetime); err != nil {
			return sandbox.Sandbox{}, err
		}
		if l.Idle, err = span(cmd, "idle", idle); err != nil {
			return sandbox.Sandbox{}, err
		}
		if life.Action != "" {
			l.TimeoutAction = (*sandbox.IdleAction)(&life.Action)
		}
		if cmd.Flags().Changed("wake") {
			l.Wakes = &life.Wake
		}
		if life.IdleAction != "" {
			l.IdleAction = (*sandbox.IdleAction)(&life.IdleAction)
		}
		if c.Labels, err = labelChanges(labelList, unlabel); err != nil {
			return sandbox.Sandbox{}, err
		}
		var info sandbox.Sandbox
		if cmd.Flags().Changed("egress") {
			n := sandbox.Network{Egress: append([]string{}, egress...)}
			local, _ := n.Local()
			if err := policy.CheckReach(local); err != nil {
				return info, err
			}
			if info, err = s.Update(ctx, sandbox.Change{Network: &n}); err != nil || !slices.ContainsFunc(changes, cmd.Flags().Changed) {
				return info, err
			}
		}
		info, err = s.Update(ctx, c)
		if err == nil && c.Resources != (sandbox.Resources{}) {
			noteLimits(a.Env, info.Limits)
		}
		return info, err
	})
	flags := cmd.Flags()
	flags.Float64Var(&cpus, "cpus", 0, "number of processors, such as 0.5")
	flags.VarP(&memory, "memory", "m", "memory, such as 512m")
	flags.Var(&disk, "disk", "size of its writable file system, such as 2g")
	flags.Int64Var(&pids, "pids", 0, "processes and threads alive at once")
	flags.BoolVar(&requireLimits, "require-limits", false, request.RequireLimitsHelp)
	flags.StringArrayVarP(&labelList, "label", "l", nil, "set a label: KEY=VALUE")
	flags.StringArrayVar(&unlabel, "unlabel", nil, "remove a label: KEY")
	flags.StringSliceVar(&egress, "egress", nil, `hosts that the sandbox may reach from now on, in place of those of --egress when it was made; "" for none`)
	flags.StringVar(&lifetime, "lifetime", "", "time from now after which to carry out --lifetime-action, such as 1h, or never")
	flags.StringVar(&idle, "idle", "", "time without use after which the daemon carries out --idle-action, or never")
	life.Register(cmd)
	return cmd
}

// span reads a duration or "never".
func span(cmd *cobra.Command, flag, text string) (*time.Duration, error) {
	if !cmd.Flags().Changed(flag) {
		return nil, nil
	}
	var d resource.DurationFlag
	if text != "never" {
		if err := d.Set(text); err != nil {
			return nil, term.BadFlag(flag, "%v, nor never", err)
		}
	}
	return (*time.Duration)(&d), nil
}

func labelChanges(list, remove []string) (map[string]*string, error) {
	set, err := request.Labels(nil, list)
	if err != nil {
		return nil, err
	}
	out := map[string]*string{}
	for k, v := range set {
		out[k] = &v
	}
	for _, k := range remove {
		if strings.Contains(k, "=") {
			return nil, term.BadFlag("unlabel", "%q is not the KEY of a label", k)
		}
		out[k] = nil
	}
	return out, nil
}

// maxForks is how many copies one request makes at most, as in the API.
const maxForks = 100

func (a lifecycleCommands) forkCmd() *cobra.Command {
	var opts durable.ForkRequest
	var labelList []string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "fork [flags] SANDBOX", Short: "Make copies of a sandbox",
		Long: `Fork copies a sandbox in its current state: its files, and its processes with their
memory if the provider supports that. Each copy has its own name and id, and the
original keeps running. Fork prints the names of the copies. It makes all or none.`,
		Example: `  atoll fork demo
  atoll fork demo --count 3 --name-prefix try`,
		GroupID: resource.GroupSandbox, Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	flags := cmd.Flags()
	flags.IntVarP(&opts.Count, "count", "n", 1, "how many copies, at most 100")
	flags.StringVar(&opts.Prefix, "name-prefix", "", "name them PREFIX-1, PREFIX-2 and so on (default: their ids)")
	flags.StringArrayVarP(&labelList, "label", "l", nil, "label them, besides the labels of the sandbox: KEY=VALUE")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		if opts.Count < 1 || opts.Count > maxForks {
			return term.BadFlag("count", "%d is not a number from 1 to %d", opts.Count, maxForks)
		}
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		if opts.Labels, err = request.Labels(nil, labelList); err != nil {
			return err
		}
		s, err := c.Get(ctx, args[0])
		if err != nil {
			return err
		}
		copies, err := s.Fork(ctx, opts)
		if err != nil {
			return err
		}
		for _, made := range copies {
			target.NoteReason(a.Env, made.Info())
		}
		if asJSON {
			infos := make([]sandbox.Sandbox, len(copies))
			for i, made := range copies {
				infos[i] = made.Info()
			}
			return a.PrintJSON(infos)
		}
		names := make([]string, len(copies))
		for i, made := range copies {
			names[i] = made.Name()
		}
		return a.each(names, func(name string) (string, error) { return name, nil })
	})
	return cmd
}
