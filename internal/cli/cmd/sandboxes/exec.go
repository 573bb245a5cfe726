package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// processCommands are atoll exec, shell, attach, ps, logs and kill.
type processCommands struct{ *target.Env }

func (a processCommands) execCmd() *cobra.Command {
	var how request.CommandFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND [ARG...]",
		Short: "Run another command in a sandbox",
		Long: `Exec runs a command in an existing sandbox. The sandbox keeps running afterwards.

Put flags before the sandbox's name; everything after it is the command. With
--detach the command runs in the background and exec prints its id; see also:
atoll ps, logs, attach, kill. The exit codes are the same as those of atoll run.`,
		Example: `  atoll exec demo -- uname -a
  echo hello | atoll exec -i demo -- cat
  atoll exec -e NAME=value -w /tmp demo -- sh -c 'echo $NAME; pwd'
  atoll exec --json demo -- id -u
  atoll exec -d demo -- sleep 60`,
		GroupID:           resource.GroupSandbox,
		Annotations:       map[string]string{"runs": "yes"},
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	how.Register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := how.Validate(cmd); err != nil {
			return err
		}
		words := args[1:]
		if len(words) > 0 && words[0] == "--" {
			words = words[1:]
		}
		if len(words) == 0 {
			return &term.UsageError{Message: "no command given", Hint: "for example: atoll exec " + args[0] + " -- ls /"}
		}
		env, err := request.Environment(a.Env, how.EnvFiles, how.Env)
		if err != nil {
			return err
		}
		c := request.CommandOf(a.Env, &how, words)
		c.User, c.Dir = how.User, how.Workdir
		for name, value := range c.Env { // TERM, unless it was given
			if _, given := env[name]; !given {
				env[name] = value
			}
		}
		c.Env = env
		return a.execIn(cmd.Context(), args[0], c, &how)
	}
	return cmd
}

// execIn runs a command in an existing sandbox, as the flags say.
func (a processCommands) execIn(ctx context.Context, name string, c sandbox.Command, how *request.CommandFlags) error {
	if how.Detach {
		sb, err := a.Find(ctx, name)
		if err != nil {
			return err
		}
		p, err := sb.Exec(ctx, c)
		if err != nil {
			return err
		}
		err = a.Println(p.Info().ID)
		return errors.Join(err, p.Close())
	}
	return a.connect(ctx, name, how, func(ctx context.Context, sb target.Sandbox) (driver.Process, error) {
		return sb.Exec(ctx, c)
	})
}

// connect connects our terminal with a process of an existing sandbox.
func (a processCommands) connect(ctx context.Context, name string, how *request.CommandFlags, open func(context.Context, target.Sandbox) (driver.Process, error)) error {
	return foreground(ctx, a.Env, how, func(ctx context.Context, s *commandIO, res *result) (sandbox.Exit, error) {
		sb, err := a.Find(ctx, name)
		if err != nil {
			return sandbox.Exit{}, err
		}
		res.Sandbox = sb.Name()
		began := time.Now()
		p, err := open(ctx, sb)
		if err != nil {
			return sandbox.Exit{}, err
		}
		defer p.Close()
		_, shared := p.(*atoll.Terminal)
		if p.Info().TTY && s.stdin != nil && term.IsTerminal(a.Stdin) && s.sizes == nil { // attach
			s.sizes = a.Terminal()
			s.terminal, _ = a.Stdin.(*os.File)
			_ = p.Resize(ctx, term.WindowSize(s.sizes)) // it may just have ended
		}
		s.canLeave(ctx, p, how.Keys)
		err = s.use(ctx, p)
		back := "atoll attach "
		if shared {
			back = "atoll terminal "
			if term.IsTerminal(a.Stdout) {
				_ = a.Printf("%s", term.Painted(term.ResetScreen))
			}
		}
		if errors.Is(err, term.ErrDetached) {
			a.Say("note", "detached; to come back: "+back+sb.Name())
			return sandbox.Exit{Reason: sandbox.ReasonExited}, nil
		}
		if err != nil {
			return sandbox.Exit{}, err
		}
		exit, err := p.Wait(ctx)
		if err == nil {
			if !explainRefusal(ctx, a.Env, sb, began, exit) && exit.Code != 0 && s.unreached() {
				has, known := hasNetwork(ctx, sb)
				hintNetwork(a.Env, has, known)
			}
		}
		return exit, err
	})
}

func (a processCommands) shellCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shell SANDBOX",
		Short: "Open a shell in a sandbox",
		Long: `Shell opens bash, or sh if there is no bash, in an existing sandbox. If Atoll runs on
a terminal, so does the shell; otherwise the shell reads a script from standard input.`,
		Example: `  echo 'echo hello from $(hostname)' | atoll shell demo`,
		GroupID: resource.GroupSandbox, Annotations: map[string]string{"runs": "yes"},
		Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		how := request.CommandFlags{Interactive: true, Tty: term.IsTerminal(a.Stdin)}
		c := request.CommandOf(a.Env, &how, nil)
		c.Shell = "if command -v bash >/dev/null; then exec bash; fi; exec sh"
		return a.execIn(cmd.Context(), args[0], c, &how)
	}
	return cmd
}

func (a processCommands) attachCmd() *cobra.Command {
	var noInput, shared, readOnly bool
	var keys term.KeysFlag
	cmd := &cobra.Command{
		Use:   "attach [flags] SANDBOX [ID]",
		Short: "Connect to a background command",
		Long: `Attach shows the output of a background command, past and future, until the
command ends, and returns its exit code. The first Ctrl-C goes to the command; the
second one only detaches, as a SIGTERM or SIGHUP does after 10 seconds. Without an ID (see atoll ps) it is the background command
that was started last.

If the command was started with -i (atoll run -d -i -t), attach also connects standard
input, and on a terminal the keys of --detach-keys detach: the command goes on.

With --shared several viewers see one terminal, and each sees the current screen at once.
Its size is that of the smallest window of those who may type; with --read-only you only
watch. Without --shared, attach takes the command over from other connections. See also:
atoll terminal.`,
		Example: `  atoll exec -d demo -- sh -c 'sleep 1; echo done'
  atoll attach demo`,
		GroupID: resource.GroupSandbox, Annotations: map[string]string{"runs": "yes"},
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	cmd.Flags().BoolVar(&noInput, "no-stdin", false, "do not connect standard input")
	cmd.Flags().BoolVar(&shared, "shared", false, "share the terminal of the command with other viewers")
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "with --shared: only watch")
	keys.Register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if shared {
			return a.share(cmd.Context(), args[0], keys, func(ctx context.Context, sb target.Sandbox) (opts atoll.TerminalOptions, err error) {
				opts.Watch = readOnly || noInput
				opts.Process, err = pickCommand(ctx, sb, args[1:], false)
				return opts, err
			})
		}
		if readOnly {
			return term.BadFlag("read-only", "needs --shared; see also --no-stdin")
		}
		how := &request.CommandFlags{Interactive: !noInput && (term.IsTerminal(a.Stdin) || !term.IsNull(a.Stdin)), Keys: keys}
		return a.connect(cmd.Context(), args[0], how, func(ctx context.Context, sb target.Sandbox) (driver.Process, error) {
			id, err := pickCommand(ctx, sb, args[1:], false)
			if err != nil {
				return nil, err
			}
			return sb.Reconnect(ctx, id)
		})
	}
	return cmd
}

func (a processCommands) terminalCmd() *cobra.Command {
	var readOnly, asLink bool
	var keys term.KeysFlag
	var link linkFlags
	cmd := &cobra.Command{
		Use:   "terminal [flags] SANDBOX",
		Short: "Open the terminal of a sandbox that viewers share",
		Long: `Terminal opens a login shell in the workspace of a sandbox, which all viewers share: each
sees the same screen, at once, and those without --read-only type. The size is that of the
smallest window of those who type. The shell is started if it does not run, and goes on
when its viewers leave, with the keys of --detach-keys. If the connection is lost, it is
made again, and nothing is lost.

With --link it opens in the browser instead, and the link is printed for where there is
no browser. Whoever opens the link needs no key, and sees this terminal and nothing else.`,
		Example: `  printf 'echo hello\nexit\n' | atoll terminal demo
  atoll terminal --link --view --no-browser demo`,
		GroupID: resource.GroupSandbox, Annotations: map[string]string{"runs": "yes"},
		Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "only watch")
	cmd.Flags().BoolVar(&asLink, "link", false, "open it in the browser, with a link that works once")
	keys.Register(cmd.Flags())
	link.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if asLink {
			link.view = link.view || readOnly
			return resource.Interruptible(func(ctx context.Context, args []string) error {
				return openStream(ctx, a.Env, args[0], viewing.NewStream{Kind: "terminal"}, &link)
			})(cmd, args)
		}
		if name := link.used(cmd); name != "" {
			return term.BadFlag(name, "needs --link")
		}
		return a.share(cmd.Context(), args[0], keys, func(context.Context, target.Sandbox) (atoll.TerminalOptions, error) {
			return atoll.TerminalOptions{Watch: readOnly}, nil
		})
	}
	return cmd
}

// share shows a terminal of a sandbox as one of its viewers.
func (a processCommands) share(ctx context.Context, name string, keys term.KeysFlag, which func(context.Context, target.Sandbox) (atoll.TerminalOptions, error)) error {
	how := &request.CommandFlags{Interactive: true, Keys: keys}
	return a.connect(ctx, name, how, func(ctx context.Context, sb target.Sandbox) (driver.Process, error) {
		opts, err := which(ctx, sb)
		if err != nil {
			return nil, err
		}
		if screen := a.Terminal(); screen != nil {
			opts.Size = term.WindowSize(screen)
		}
		s, err := a.DaemonSandbox(ctx, name)
		if err != nil {
			return nil, err
		}
		return s.Terminal(ctx, opts)
	})
}

// pickCommand returns the given id, or the id of the newest background command.
// Without one, a signal may go to a process that a command left behind, which
// cannot be attached to, and has no log.
func pickCommand(ctx context.Context, sb target.Sandbox, given []string, forSignal bool) (string, error) {
	if len(given) > 0 {
		return given[0], nil
	}
	all, err := sb.Processes(ctx)
	if err != nil {
		return "", err
	}
	left := ""
	for _, p := range slices.Backward(all) {
		switch {
		case p.Background && !p.LeftBehind():
			return p.ID, nil
		case left == "" && p.LeftBehind():
			left = p.ID
		}
	}
	if forSignal && left != "" {
		return left, nil
	}
	e := &sandbox.Error{
		Code: sandbox.CodeNotFound, Subject: sb.Name(), Message: "no background command was started",
		Hint: "start one with: atoll exec -d " + sb.Name() + " -- COMMAND",
	}
	if left != "" {
		e.Message = "no background command was started, only processes that a command left behind with & or as a daemon"
		e.Hint += "; see what runs with: atoll ps " + sb.Name()
	}
	return "", e
}

func (a processCommands) psCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps SANDBOX",
		Short: "List the commands that were started in a sandbox",
		Example: `  atoll ps demo
  atoll ps --json demo`,
		GroupID: resource.GroupSandbox,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &term.UsageError{Message: "name the sandbox whose commands to list", Hint: "to list sandboxes: atoll ls"}
			}
			return nil
		},
		ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.Flags().BoolP("all", "a", false, "no effect: ps always shows ended ones too")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		sb, err := a.Find(ctx, args[0])
		if err != nil {
			return err
		}
		all, err := sb.Processes(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(append([]sandbox.ProcessInfo{}, all...))
		}
		rows := make([][]string, 0, len(all))
		for _, p := range all {
			rows = append(rows, []string{p.ID, fmt.Sprint(p.PID), processState(p), term.Ago(p.Started), term.CommandText(p.Args)})
		}
		return a.Table("ID PID STATE STARTED COMMAND", rows)
	})
	return cmd
}

func processState(p sandbox.ProcessInfo) string {
	switch {
	case p.Running && p.Background:
		return "background"
	case p.Running:
		return "running"
	case p.Exit == nil:
		return "ended"
	case p.Exit.Reason != sandbox.ReasonExited:
		return fmt.Sprintf("%s %d", p.Exit.Reason, p.Exit.Code)
	}
	return fmt.Sprintf("exited %d", p.Exit.Code)
}

func (a processCommands) logsCmd() *cobra.Command {
	var opts driver.LogOptions
	cmd := &cobra.Command{
		Use:   "logs SANDBOX [ID]",
		Short: "Show what a background command wrote",
		Long: `Logs shows the output of a background command. The log has a limited size, and the
oldest output is dropped first. Without an ID (see atoll ps) it is the background
command that was started last. Of the command of run -d that --restart has started
again, logs shows all runs that are kept, at most 64, or with --tail the last one.`,
		Example: `  atoll logs demo
  atoll logs --tail 10 demo`,
		GroupID: resource.GroupSandbox,
		Args:    cobra.RangeArgs(1, 2), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	cmd.Flags().IntVarP(&opts.Tail, "tail", "n", 0, "show only this many of the last lines")
	cmd.Flags().BoolVarP(&opts.Follow, "follow", "f", false, "follow the output until the command ends")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		sb, err := a.Find(ctx, args[0])
		if err != nil {
			return err
		}
		id, err := pickCommand(ctx, sb, args[1:], false)
		if err != nil {
			return err
		}
		if len(args) == 1 && opts.Tail == 0 {
			if err := a.showEarlierRuns(ctx, sb, id); err != nil {
				return err
			}
		}
		return a.showLogs(ctx, sb, id, opts)
	})
	return cmd
}

// showLogs writes the log of a command.
func (a processCommands) showLogs(ctx context.Context, sb target.Sandbox, id string, opts driver.LogOptions) error {
	logs, err := sb.Logs(ctx, id, opts)
	if err != nil {
		return err
	}
	// A reader that waits for more is woken by closing it.
	defer context.AfterFunc(ctx, func() { _ = logs.Close() })()
	defer logs.Close()
	err = a.copyLogs(logs)
	if ctx.Err() != nil {
		return term.ExitCode(term.ExitInterrupted)
	}
	return err
}

// showEarlierRuns writes what a main command wrote before it was started again, as
// far as it is kept. Other commands run once.
func (a processCommands) showEarlierRuns(ctx context.Context, sb target.Sandbox, id string) error {
	main := sb.Main()
	if main == nil || main.Process != id || main.Restarts == 0 {
		return nil
	}
	all, err := sb.Processes(ctx)
	if err != nil {
		return err
	}
	for _, run := range earlierRuns(all, main) {
		err := a.showLogs(ctx, sb, run, driver.LogOptions{})
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound { // not forgotten meanwhile
			return err
		}
	}
	return nil
}

// earlierRuns returns the ids of the runs of a main command before its last, the
// oldest first.
func earlierRuns(all []sandbox.ProcessInfo, main *sandbox.MainCommand) (ids []string) {
	last := slices.IndexFunc(all, func(p sandbox.ProcessInfo) bool { return p.ID == main.Process })
	if last < 0 {
		return nil
	}
	for _, p := range all[:last] {
		if p.Background && slices.Equal(p.Args, all[last].Args) {
			ids = append(ids, p.ID)
		}
	}
	return ids[max(0, len(ids)-main.Restarts):]
}

func (a processCommands) killCmd() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "kill SANDBOX [ID]",
		Short: "Signal a background command",
		Long: `Kill sends a signal to a command and all its children. Without an ID (see atoll ps)
it is the background command that was started last.`,
		Example: `  atoll exec -d demo -- sleep 600
  atoll kill --signal TERM demo`,
		GroupID: resource.GroupSandbox,
		Args:    cobra.RangeArgs(1, 2), ValidArgsFunction: resource.CompleteSandbox(a.Env),
	}
	cmd.Flags().StringVarP(&name, "signal", "s", "KILL", "signal, by name or number")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		sig, err := parseSignal(name)
		if err != nil {
			return err
		}
		sb, err := a.Find(ctx, args[0])
		if err != nil {
			return err
		}
		id, err := pickCommand(ctx, sb, args[1:], true)
		if err != nil {
			return err
		}
		return sb.Kill(ctx, id, sig)
	})
	return cmd
}
