package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// runCommands are atoll run and atoll create.
type runCommands struct{ *target.Env }

func (a runCommands) runCmd() *cobra.Command {
	var sandboxFlags request.SandboxFlags
	var how request.CommandFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] [COMMAND [ARG...]]",
		Short: "Run a command in a new sandbox",
		Long: `Run makes a sandbox, runs a command in it and removes it again.

All words after the flags are the command; choose the image with --image. Without
--image the sandbox shows this machine's own programs, read-only, so nothing has to
be downloaded. Without a command, the image's default command runs.

The sandbox is removed when the command or this program ends, unless you give --keep
or --detach. With --detach the command runs in the background and run prints the
name of the sandbox; see also: atoll exec, logs, attach, cp, rm. When the command ends,
atoll ls shows the sandbox as exited with the exit code; its files and its log stay
until it is removed. With --rm it is removed then, and --restart starts the command
again. Sandboxes that stay are managed by a daemon, which is started if none runs
(see: atoll up). If standard output is not a terminal, as for programs, they are
stopped after 24 hours without use unless --idle or --lifetime is given; a running
command counts as use.

The first Ctrl-C goes to the command; the second one ends it and removes the sandbox.
So does a SIGTERM or SIGHUP after 10 seconds.

The exit code is that of the command: 126 if it cannot be executed, 127 if it is not
found, 128+n if signal n ended it. 124 means that --timeout or --lifetime ended it,
125 that Atoll itself failed.`,
		Example: `  atoll run -- python3 -c 'print(6*7)'
  echo hello | atoll run -i -- tr a-z A-Z
  atoll run --memory 256m --cpus 0.5 --timeout 10s -- sh -c 'echo $((6*7))'
  atoll run -e GREETING=hello -v .:/src:ro -w /src -- sh -c 'echo $GREETING; ls'
  atoll run --json -- uname -s
  atoll run -d --name demo -- sleep 600
  atoll run -d --rm -- sh -c 'exit 0'
  atoll run -d -p 8080:8000 -- python3 -m http.server 8000`,
		GroupID:     resource.GroupSandbox,
		Annotations: map[string]string{"runs": "yes"},
	}
	how.Register(cmd.Flags())
	sandboxFlags.Register(cmd)
	request.CompleteSandboxFlags(a.Env, cmd)
	resource.CompleteFlag(cmd, "pull", "missing", "always", "never")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := how.Validate(cmd); err != nil {
			return err
		}
		req, err := request.Build(a.Env, cmd, &sandboxFlags, &how, args)
		if err != nil {
			return err
		}
		t, err := a.RunnerFor(cmd.Context(), &req, how.Detach)
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
		if how.Detach {
			a.limitForgotten(t, &sandboxFlags, &req.Spec)
			made, err := a.startDetached(cmd.Context(), t, req, sandboxFlags.Quiet)
			if err == nil {
				err = a.Println(made.Name())
			}
			return err
		}
		err = foreground(cmd.Context(), a.Env, &how, func(ctx context.Context, s *commandIO, res *result) (sandbox.Exit, error) {
			progress, done := target.Progress(a.Env, sandboxFlags.Quiet)
			defer done()
			req.Progress = progress
			t.Tidy(ctx)
			exit, err := t.Run(ctx, req, func(ctx context.Context, made target.Sandbox, p driver.Process) error {
				done()
				res.Sandbox, res.Limits = made.Name(), made.Limits()
				if !sandboxFlags.Quiet {
					noteLimits(a.Env, made.Limits())
					noteOpen(a.Env, req.Spec.Ports)
					noteChosen(a.Env, req.Spec.Ports, made)
				}
				asked := req.Spec.Network.Asked()
				s.canLeave(ctx, p, how.Keys)
				if err := s.use(ctx, p); err != nil || !asked && !s.unreached() {
					return err
				}
				exit, err := p.Wait(ctx)
				// All refusals are of this command: the sandbox is new.
				if err == nil && !(asked && explainRefusal(ctx, a.Env, made, time.Time{}, exit)) && exit.Code != 0 && s.unreached() {
					hintNetwork(a.Env, asked, true)
				}
				return err
			})
			if errors.Is(err, term.ErrDetached) {
				a.Say("note", "detached; to come back: atoll attach "+res.Sandbox)
				return sandbox.Exit{Reason: sandbox.ReasonExited}, nil
			}
			return exit, err
		})
		if err == term.ExitCode(term.ExitNotFound) && !cmd.Flags().Changed("image") && len(args) > 0 && looksLikeImage(args[0]) {
			a.Say("hint", "images are named with a flag: atoll run --image "+args[0]+" -- COMMAND")
		}
		return err
	}
	return cmd
}

// wellKnownImages have names that no program has, as far as a command that was
// not found goes.
var wellKnownImages = []string{"alpine", "archlinux", "busybox", "debian", "fedora", "golang", "node", "python", "redis", "ruby", "rust", "ubuntu"}

// looksLikeImage reports whether an argument that is not a command looks like
// an image, as in other programs: name:tag or host/name.
func looksLikeImage(word string) bool {
	if strings.HasPrefix(word, "/") || strings.HasPrefix(word, ".") {
		return false
	}
	return strings.ContainsAny(word, ":/") || slices.Contains(wellKnownImages, word)
}

// noteLimits says which limits do not hold.
func noteLimits(a *target.Env, loose map[string]sandbox.Enforcement) {
	for _, name := range slices.Sorted(maps.Keys(loose)) {
		a.Say("note", "the limit of "+name+" is not enforced: "+loose[name].Why)
	}
}

// forgottenTime is how long a sandbox that a program made may be unused before it
// is stopped.
const forgottenTime = 24 * time.Hour

// limitForgotten sets an idle policy if a program, which may forget the sandbox,
// makes it and says nothing about its end. A person sees it on a terminal.
func (a runCommands) limitForgotten(t target.Sandboxes, sb *request.SandboxFlags, spec *sandbox.Spec) {
	if _, managed := t.(target.RemoteSandboxes); managed && sb.Idle == 0 && sb.Lifetime == 0 && !term.IsTerminal(a.Stdout) {
		spec.Lifetime.Idle, spec.Lifetime.IdleAction = forgottenTime, sandbox.IdleStop
	}
}

// startDetached makes a sandbox that stays.
func (a runCommands) startDetached(ctx context.Context, t target.Sandboxes, req engine.RunRequest, quiet bool) (target.Sandbox, error) {
	signals, ctx, stop := catchSignals(ctx)
	defer stop()
	_ = signals // no command of ours runs: every signal ends the attempt
	progress, done := target.Progress(a.Env, quiet)
	defer done()
	req.Progress = progress
	t.Tidy(ctx)
	made, err := t.Start(ctx, req)
	if err != nil {
		if code, early := whyEnded(ctx, err); early {
			return nil, code
		}
		return nil, err
	}
	if !quiet {
		noteLimits(a.Env, made.Limits())
		noteOpen(a.Env, req.Spec.Ports)
		noteChosen(a.Env, req.Spec.Ports, made)
	}
	return made, nil
}

// foreground runs a command connected to our streams and turns how it ended
// into our own exit code.
func foreground(ctx context.Context, a *target.Env, how *request.CommandFlags, run func(context.Context, *commandIO, *result) (sandbox.Exit, error)) error {
	if how.Tty && how.Interactive && !term.IsTerminal(a.Stdin) {
		return &term.UsageError{Message: "-t: the input is not a terminal", Hint: "leave out -t, or -i"}
	}
	signals, ctx, stop := catchSignals(ctx)
	defer stop()
	s := &commandIO{stdout: a.Stdout, stderr: a.Stderr, signals: signals}
	if how.Interactive {
		s.stdin = a.Stdin
	}
	if how.Tty {
		s.sizes = a.Terminal()
		if how.Interactive && term.IsTerminal(a.Stdin) {
			s.terminal = a.Stdin.(*os.File)
		}
	}
	var out, errs capture
	if how.Json {
		out.limit, errs.limit = int64(how.OutputLimit), int64(how.OutputLimit)
		s.stdout, s.stderr = &out, &errs
	}
	var res result
	began := time.Now()
	exit, err := run(ctx, s, &res)
	if code, early := whyEnded(ctx, err); early && err != nil {
		return code
	}
	res.DurationMS = time.Since(began).Milliseconds()
	if how.Json {
		res.Stdout, res.Stderr = out.output(), errs.output()
		return finishJSON(a, &res, exit, err)
	}
	if err != nil {
		return err
	}
	return endedWith(a, exit, how)
}

// finishJSON writes the one object of --json.
func finishJSON(a *target.Env, res *result, exit sandbox.Exit, err error) error {
	res.Exit, res.Reason, res.Signal, res.Detail = codeFor(exit), exit.Reason, exit.Signal, exit.Detail
	if err != nil {
		res.Exit, res.Error = term.ExitAtoll, term.Typed(err)
	}
	if werr := a.PrintJSON(res); werr != nil {
		return werr
	}
	if res.Exit == 0 {
		return nil
	}
	return term.ExitCode(res.Exit)
}

// codeFor returns the exit code for the end of a command.
func codeFor(exit sandbox.Exit) int {
	switch exit.Reason {
	case sandbox.ReasonTimeout, sandbox.ReasonLifetime:
		return term.ExitTimeout
	case sandbox.ReasonCrashed, sandbox.ReasonLost:
		return term.ExitAtoll
	case sandbox.ReasonMemory, sandbox.ReasonKilled:
		if exit.Code == 0 {
			return 137 // as if by SIGKILL, which it was
		}
	}
	return exit.Code
}

// endedWith says why a command was ended, if it did not end by itself, and
// returns its exit code.
func endedWith(a *target.Env, exit sandbox.Exit, how *request.CommandFlags) error {
	var text string
	switch exit.Reason {
	case sandbox.ReasonTimeout:
		text = fmt.Sprintf("the command was killed: it ran longer than %s", time.Duration(how.Timeout))
	case sandbox.ReasonLifetime:
		text = "the command was killed: its sandbox reached the end of its lifetime"
	case sandbox.ReasonMemory:
		text = "the command was killed: the sandbox reached its memory limit"
	case sandbox.ReasonKilled:
		text = "the command was killed: its sandbox was removed"
	case sandbox.ReasonCrashed:
		text = "the sandbox's kernel ended unexpectedly"
	case sandbox.ReasonLost:
		text = "the sandbox could not be reached any more"
	}
	if text != "" {
		if !strings.HasSuffix(text, exit.Detail) {
			text += " (" + exit.Detail + ")"
		}
		a.Say("error", text)
	}
	if code := codeFor(exit); code != 0 {
		return term.ExitCode(code)
	}
	return nil
}
