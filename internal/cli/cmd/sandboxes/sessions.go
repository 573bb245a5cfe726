package sandboxes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// sessionCommands are atoll session and atoll usage.
type sessionCommands struct{ *target.Env }

func (a sessionCommands) sessionCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use:   "session",
		Short: "Work with sessions: names that always lead to a living sandbox",
		Long: `A session is what an agent holds instead of a sandbox. It has a name and settings, and
leads to one sandbox. When nobody uses the session for a while, the daemon saves its
workspaces, or its files if it has no workspace, and removes the sandbox. The next use
makes one with what was saved.`,
		Example: `  atoll session create notes
  atoll session exec notes -- sh -c 'echo hello > /root/note'
  atoll session ls`,
		GroupID: resource.GroupSandbox,
	}, a.createCmd(), a.attachCmd(), a.execCmd(), a.cpCmd(), a.terminalCmd(), a.desktopCmd(), a.streamCmd(), a.saveCmd(), a.targetsCmd(), a.swapCmd(), a.runOnCmd(), a.envelopeCmd(), a.resumeCmd(), a.lsCmd(), a.inspectCmd(), a.rmCmd())
}

// complete offers the names of sessions for the first word.
func (a sessionCommands) complete(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeAll(cmd, args, "")
}

func (a sessionCommands) completeAll(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), resource.CompletionTime)
	defer cancel()
	c, err := a.Daemon(ctx)
	if err != nil || c == nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all, err := c.Sessions().List(ctx, nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// outcome describes the sandbox that a session got.
func outcome(name string, r *durable.Receipt) string {
	text := fmt.Sprintf("%s: %s, sandbox %s at epoch %d", name, r.Outcome, r.Sandbox, r.Epoch)
	if len(r.Lost) > 0 {
		text += "; lost: " + strings.Join(r.Lost, ", ")
	}
	return text
}

func (a sessionCommands) createCmd() *cobra.Command {
	var sandboxFlags request.SandboxFlags
	var how request.CommandFlags
	var opts atoll.SessionOptions
	var record string
	cmd := &cobra.Command{
		Use: "create [flags] [NAME]", Short: "Make a session and its sandbox", Args: cobra.MaximumNArgs(1),
		Long: `Create makes a session with a sandbox and prints its name. The flags say what its
sandboxes are made from, as for: atoll create. With --attach an existing session of
that name is used instead.`,
		Example: `  atoll session create notes
  atoll session create --attach --label team=search notes`,
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&how.Env, "env", "e", nil, "set a variable: NAME=VALUE, or NAME to pass on your own")
	flags.StringArrayVar(&how.EnvFiles, "env-file", nil, "read variables from a file, one NAME=VALUE per line")
	flags.StringVarP(&how.Workdir, "workdir", "w", "", "directory that commands start in, absolute; made if it is missing")
	flags.StringVarP(&how.User, "user", "u", "", "user that commands run as: NAME, UID, NAME:GROUP or UID:GID")
	flags.StringVar(&opts.Group, "group", "", "sessions of the same group share one sandbox (default: a group of its own)")
	flags.BoolVar(&opts.PauseOnExit, "pause-on-exit", false, "pause the sandbox instead of removing it when the session has no holder, if the provider can")
	flags.StringVar(&record, "record", "", "on-turn: record the desktop in every turn that uses it, until the turn is released (default: manual)")
	_ = cmd.RegisterFlagCompletionFunc("record", cobra.FixedCompletions([]string{string(viewing.RecordManual), string(viewing.RecordOnTurn)}, cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVar(&opts.AttachIfExists, "attach", false, "use the session of that name if there is one; the other flags are then ignored")
	sandboxFlags.Register(cmd)
	unused := []string{"rm", "keep", "entrypoint", "name", "pull", "platform"}
	for _, name := range unused {
		_ = flags.MarkHidden(name)
	}
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (out durable.Opened, err error) {
		for _, name := range unused {
			if cmd.Flags().Changed(name) {
				return out, term.BadFlag(name, "does not apply to a session")
			}
		}
		switch opts.Record = viewing.RecordMode(record); opts.Record {
		case "", viewing.RecordManual, viewing.RecordOnTurn:
		default:
			return out, term.BadFlag("record", "%q is not manual or on-turn", record)
		}
		how.Detach = true
		req, err := request.Build(a.Env, cmd, &sandboxFlags, &how, nil)
		if err == nil {
			req.Spec.Image, err = target.AbsoluteImage(req.Spec.Image)
		}
		if err != nil {
			return out, err
		}
		opts.Name = strings.Join(args, "")
		s, err := c.Sessions().Create(ctx, req.Spec, opts)
		if err != nil {
			return out, err
		}
		return a.shortly(s)
	}, func(o durable.Opened) error {
		return a.Println(o.Session.Name)
	})
}

// shortly describes an opened session and closes it.
func (a sessionCommands) shortly(s *atoll.Session) (durable.Opened, error) {
	receipt := s.Receipt()
	return durable.Opened{Session: s.Info(), Receipt: &receipt}, s.Close()
}

func (a sessionCommands) attachCmd() *cobra.Command {
	var hold bool
	cmd := &cobra.Command{
		Use: "attach [flags] SESSION", Short: "Make sure that a session has a sandbox, and say what happened to the last one",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.complete,
		Long: `Attach makes, wakes or rebuilds the sandbox of a session and tells which of these it
was, and what was lost. With --hold it then keeps the sandbox until it is interrupted.`,
		Example: `  atoll session attach notes`,
	}
	cmd.Flags().BoolVar(&hold, "hold", false, "keep the sandbox until this command is interrupted")
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (out durable.Opened, err error) {
		s, err := c.Sessions().Attach(ctx, args[0], atoll.SessionOptions{})
		if err != nil {
			return out, err
		}
		if hold {
			r := s.Receipt()
			a.Say("note", outcome(s.Name(), &r)+"; press Ctrl-C to release it")
			<-ctx.Done()
		}
		return a.shortly(s)
	}, func(o durable.Opened) error {
		return a.Println(outcome(o.Session.Name, o.Receipt))
	})
}

// inSession makes a command for sandboxes one for sessions.
func (a sessionCommands) inSession(cmd *cobra.Command) *cobra.Command {
	cmd.GroupID = ""
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.Sessions = true
		return run(cmd, args)
	}
	return cmd
}

func (a sessionCommands) execCmd() *cobra.Command {
	cmd := a.inSession(processCommands(a).execCmd())
	cmd.Use, cmd.Short, cmd.ValidArgsFunction = "exec [flags] SESSION [--] COMMAND [ARG...]", "Run a command in the sandbox of a session", a.complete
	cmd.Long = `Exec runs a command in the sandbox of a session, which is made if there is none. Put
flags before the session's name; everything after it is the command. A command in the
background does not keep the sandbox. The exit codes are the same as those of atoll run.`
	cmd.Example = `  atoll session exec notes -- ls /root`
	return cmd
}

func (a sessionCommands) cpCmd() *cobra.Command {
	cmd := a.inSession(copyCommands(a).cpCmd())
	cmd.Use, cmd.Short = "cp SESSION:PATH LOCAL | LOCAL SESSION:PATH", "Copy files in and out of the sandbox of a session"
	cmd.Long = `Cp copies a file or a directory tree, as atoll cp does, in or out of the sandbox of a
session, which is made if there is none.`
	cmd.Example = `  atoll session cp notes:/root/note copy.txt`
	return cmd
}

func (a sessionCommands) terminalCmd() *cobra.Command {
	cmd := a.inSession(processCommands(a).terminalCmd())
	cmd.Use, cmd.Short, cmd.ValidArgsFunction = "terminal [flags] SESSION", "Open the terminal of a session that viewers share", a.complete
	cmd.Long = `Terminal does what atoll terminal does, in the sandbox of a session, which is made if
there is none. A link goes on in the next sandbox of the session.`
	cmd.Example = `  atoll session terminal --link --no-browser notes`
	return cmd
}

func (a sessionCommands) desktopCmd() *cobra.Command {
	cmd := a.inSession(streamCommands(a).desktopCmd())
	cmd.Use, cmd.Short, cmd.ValidArgsFunction = "desktop [flags] SESSION", "Open the desktop of a session in the browser", a.complete
	cmd.Long = `Desktop does what atoll desktop does, with the sandbox of a session, which is made if
there is none. The link shows the sandbox that serves the session now.`
	cmd.Example = `  atoll session desktop --no-browser --port 5900 notes`
	return cmd
}

func (a sessionCommands) streamCmd() *cobra.Command {
	ls, rm := a.inSession(streamCommands(a).listCmd()), a.inSession(streamCommands(a).removeCmd())
	ls.Use, ls.ValidArgsFunction, ls.Example = "ls SESSION", a.complete, "  atoll session stream ls notes"
	rm.Use, rm.ValidArgsFunction, rm.Example = "rm SESSION [ID...]", a.complete, "  atoll session stream rm --all notes"
	return resource.Parent(&cobra.Command{
		Use: "stream", Short: "List and end what viewers of a session may see", Example: `  atoll session stream ls notes`,
	}, ls, rm)
}

func (a sessionCommands) saveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "save SESSION", Short: "Save the workspaces of a session, or its files, now", Args: cobra.ExactArgs(1), ValidArgsFunction: a.complete,
		Long: `Save writes a version of each workspace of a session. Without a workspace it saves the
files of the sandbox. The sandbox goes on. The daemon does the same before it removes
the sandbox.`,
		Example: `  atoll session save notes`,
	}
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (out durable.Saved, err error) {
		s, err := c.Sessions().Get(ctx, args[0])
		if err != nil {
			return out, err
		}
		return s.Save(ctx)
	}, func(s durable.Saved) error {
		for _, w := range s.Workspaces {
			if err := a.Printf("%s@%s\n", w.Name, w.Version); err != nil {
				return err
			}
		}
		if s.Archive == nil {
			return nil
		}
		return a.Printf("%s %s, %s\n", s.Archive.Kind, s.Archive.Ref, term.BytesText(s.Archive.Size))
	})
}

func (a sessionCommands) envelopeCmd() *cobra.Command {
	var archive string
	cmd := &cobra.Command{
		Use: "envelope [flags] SESSION", Short: "Write JSON from which a session can be resumed", Args: cobra.ExactArgs(1), ValidArgsFunction: a.complete,
		Long: `Envelope writes JSON without secrets from which the daemon, or one that shares its
store, finds the sandbox of a session again or rebuilds it. The values of environment
variables are not in it.

With --archive, envelope also writes the files below /workspace as a tar archive, which
the envelope names by its digest. Any daemon rebuilds the session from both.`,
		Example: `  atoll session envelope notes > notes.json
  atoll session envelope --archive notes.tar notes > notes.json`,
	}
	cmd.Flags().StringVar(&archive, "archive", "", "file to write the files below /workspace to; must not exist")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		s, err := c.Sessions().Get(ctx, args[0])
		if err != nil {
			return err
		}
		var e durable.Envelope
		if archive == "" {
			e, err = s.Envelope(ctx)
		} else {
			e, err = writeArchive(ctx, s, archive)
		}
		if err != nil {
			return err
		}
		return a.PrintJSON(e)
	})
	return cmd
}

// writeArchive writes the archive of a session to a new file, which only its
// owner can read. Nothing is left of one that is not complete.
func writeArchive(ctx context.Context, s *atoll.Session, name string) (durable.Envelope, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return durable.Envelope{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: name, Message: "cannot be made", Cause: err}
	}
	e, err := s.Archive(ctx, f)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(name)
	}
	return e, err
}

// maxEnvelope limits the size of an envelope.
const maxEnvelope = 4 << 20

func (a sessionCommands) readEnvelope(name string) (e durable.Envelope, err error) {
	in := a.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return e, term.Unreadable(name, err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxEnvelope))
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: name, Message: "is not an envelope: " + err.Error(), Hint: "write one with: atoll session envelope SESSION"}
	}
	return e, nil
}

func (a sessionCommands) resumeCmd() *cobra.Command {
	var (
		opts    atoll.SessionOptions
		archive string
	)
	cmd := &cobra.Command{
		Use: "resume [flags] FILE", Short: "Resume a session from an envelope", Args: cobra.ExactArgs(1),
		Long: `Resume reads an envelope from a file, or from standard input if FILE is "-". If a
session has the sandbox of the envelope, resume returns that session. Otherwise it makes
a session that finds the sandbox, or rebuilds it from what was saved.

With --archive, the file that was written with the envelope, resume rebuilds the sandbox
with the files in it, if that is gone or cannot be reached from this daemon.`,
		Example: `  atoll session envelope notes | atoll session resume -
  atoll session resume --archive notes.tar notes.json`,
	}
	cmd.Flags().StringVar(&opts.Name, "name", "", "name of the session, if it is a new one")
	cmd.Flags().StringVar(&archive, "archive", "", "file that was written with the envelope")
	cmd.Flags().StringVar(&opts.Provider, "provider", "", "provider of a sandbox that is rebuilt (default: that of the envelope)")
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (out durable.Opened, err error) {
		e, err := a.readEnvelope(args[0])
		if err != nil {
			return out, err
		}
		s, err := resumed(ctx, c, e, archive, opts)
		if err != nil {
			return out, err
		}
		return a.shortly(s)
	}, func(o durable.Opened) error {
		return a.Println(outcome(o.Session.Name, o.Receipt))
	})
}

func resumed(ctx context.Context, c *atoll.Client, e durable.Envelope, archive string, opts atoll.SessionOptions) (*atoll.Session, error) {
	if archive == "" {
		return c.Sessions().Resume(ctx, e, opts)
	}
	f, err := os.Open(archive)
	if err != nil {
		return nil, term.Unreadable(archive, err)
	}
	defer f.Close()
	return c.Sessions().ResumeFrom(ctx, e, f, opts)
}

func (a sessionCommands) lsCmd() *cobra.Command {
	var filters []string
	cmd := &cobra.Command{
		Use: "ls [flags]", Short: "List sessions", Args: cobra.NoArgs, Example: `  atoll session ls --label team=search`,
		Long: `Ls lists sessions. Their sandbox is warming: it is being made; warm: it is used; idle: it
is there, and nobody has used it since IDLE; draining: what is in it is being saved;
paused: it was kept for the next use; cold: there is none, and the next use makes one.`,
	}
	cmd.Flags().StringArrayVarP(&filters, "label", "l", nil, "only those with this label, KEY=VALUE; may be repeated")
	return resource.DaemonList(a.Env, cmd, "NAME STATE PROVIDER EPOCH HOLDERS IDLE WORKSPACE CREATED", func(ctx context.Context, c *atoll.Client, _ []string) ([]durable.Session, error) {
		wanted, err := request.Labels(nil, filters)
		if err != nil {
			return nil, err
		}
		return c.Sessions().List(ctx, wanted)
	}, func(s durable.Session) []string {
		names := make([]string, 0, len(s.Spec.Workspaces))
		for _, w := range s.Spec.Workspaces {
			names = append(names, w.Name)
		}
		l, idle := cmp.Or(s.Lease, &durable.LeaseInfo{}), "-"
		if !l.Idle.IsZero() {
			idle = term.Ago(l.Idle)
		}
		return []string{
			s.Name, leaseWord(l, time.Now()), term.OrDash(l.Provider), strconv.FormatInt(l.Epoch, 10), strconv.Itoa(len(l.Holders)), idle, term.OrDash(strings.Join(names, ",")), term.Ago(s.Created),
		}
	})
}

// leaseWord says what a person wants to know of a lease: whether there is a
// sandbox, and whether somebody uses it.
func leaseWord(l *durable.LeaseInfo, now time.Time) string {
	switch {
	case l.State == "draining" && !l.Idle.IsZero() && now.Before(l.Expires):
		return "idle" // it waits for a holder
	case l.State == "cold" && l.Sandbox != "":
		return "paused"
	}
	return l.State
}

func (a sessionCommands) inspectCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "inspect SESSION...", Short: "Show sessions in detail, as JSON", Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeAll,
		Long: `Inspect writes sessions as a JSON array: what their sandboxes are made from, who holds
them, and the last receipt, which tells what a new sandbox was made from and what was
lost. It does not show the values of environment variables.`,
		Example: `  atoll session inspect notes`,
	}
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		all := []durable.Session{}
		var failed []error
		for _, name := range args {
			s, err := c.Sessions().Get(ctx, name)
			if err != nil {
				failed = append(failed, err)
				continue
			}
			all = append(all, s.Info())
		}
		return errors.Join(append(failed, a.PrintJSON(all))...)
	})
	return cmd
}

func (a sessionCommands) rmCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm [flags] SESSION...", Short: "Remove sessions with their sandboxes", Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeAll,
		Long: `Rm removes sessions, their sandboxes and what was saved of them. Workspaces stay. A
sandbox that other sessions share is removed with the last of them.`,
		Example: `  atoll session rm notes`,
	}
	return resource.DaemonRemove(a.Env, cmd, "", func(ctx context.Context, c *atoll.Client, name string, _ bool) error {
		return c.Sessions().Remove(ctx, name)
	})
}

func (a sessionCommands) usageCmd() *cobra.Command {
	var by, from, to string
	cmd := &cobra.Command{
		Use: "usage [flags]", Short: "Show for how long sandboxes ran", GroupID: resource.GroupDaemon, Args: cobra.NoArgs,
		Long: `Usage adds up for how long sandboxes ran, with those of sessions, by the value of a
label, by group of sessions or by provider. --from and --to are rounded to whole hours.
A sandbox that is stopped or paused on disk does not count.`,
		Example: `  atoll usage --by label:team --from 30d`,
	}
	cmd.Flags().StringVar(&by, "by", "group", "what to add up by: label:KEY, group or provider")
	cmd.Flags().StringVar(&from, "from", "", "not before this time, or this long ago, such as 2026-01-31 or 30d")
	cmd.Flags().StringVar(&to, "to", "", "before this time (default: now)")
	resource.CompleteFlag(cmd, "by", "label:", "group", "provider")
	return resource.DaemonList(a.Env, cmd, "VALUE SECONDS", func(ctx context.Context, c *atoll.Client, _ []string) ([]durable.SessionUsage, error) {
		since, err := resource.ParseTime("from", from)
		if err != nil {
			return nil, err
		}
		until, err := resource.ParseTime("to", to)
		if err != nil {
			return nil, err
		}
		return c.Sessions().Usage(ctx, by, since, until)
	}, func(u durable.SessionUsage) []string {
		return []string{term.OrDash(u.Value), strconv.FormatFloat(u.Warm.Seconds(), 'f', 1, 64)}
	})
}
