package sandboxes

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

// codeCommands are atoll code.
type codeCommands struct{ *target.Env }

// maxCode is the maximum size of code from a file or standard input.
const maxCode = 1 << 20

func (a codeCommands) codeCmd() *cobra.Command {
	var req coding.CodeRequest
	var env, envFiles []string
	var timeout time.Duration
	var save string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "code [flags] SANDBOX [FILE]",
		Short: "Execute code that keeps its variables, as in a notebook", GroupID: resource.GroupSandbox,
		Long: `Code executes code in a sandbox: that of --code, of a file of yours, or of standard
input. Variables stay from one call to the next; a context has variables of its own.
The value of the last expression is printed, and pictures are saved with --save.

The image needs python3, and node, bash, Rscript or a JDK for other languages. Ctrl-C
interrupts the code. After an exception the exit code is 1, after --timeout 124.`,
		Example: `  atoll code demo -c 'x = 6 * 7'
  atoll code demo -c x
  echo 'console.log([1, 2].map(n => n * 2))' | atoll code demo --language javascript
  atoll code demo --save pictures plot.py
  atoll code context ls demo`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	flags := cmd.Flags()
	flags.StringVarP(&req.Code, "code", "c", "", "the code itself")
	flags.StringVarP(&req.Language, "language", "l", "", "python, javascript, typescript, bash, r or java (default python)")
	flags.StringVar(&req.Context, "context", "", "id of a context, instead of the default one of the language")
	flags.StringArrayVarP(&env, "env", "e", nil, "set a variable: NAME=VALUE, or NAME to pass on your own")
	flags.StringArrayVar(&envFiles, "env-file", nil, "read variables from a file, one NAME=VALUE per line")
	flags.DurationVar(&timeout, "timeout", 0, "interrupt the code after this time")
	flags.StringVar(&save, "save", "", "directory for pictures and documents that the code shows")
	flags.BoolVar(&asJSON, "json", false, "write the events, as JSON lines")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) (err error) {
		switch given := flags.Changed("code"); {
		case given && len(args) == 2:
			return &term.UsageError{Message: "the code is in --code and in a file", Hint: "give one of them"}
		case timeout < 0:
			return term.BadFlag("timeout", "is negative")
		case !given:
			if req.Code, err = a.readCode(args[1:]); err != nil {
				return err
			}
		}
		req.TimeoutMS = timeout.Milliseconds()
		if req.Env, err = request.Environment(a.Env, envFiles, env); err != nil {
			return err
		}
		sb, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		out := codeOutput{Env: a.Env, dir: save, json: asJSON}
		err = sb.StreamCode(ctx, req, out.show)
		switch {
		case err != nil:
			return err
		case out.timedOut:
			a.Notef("the code was interrupted after %s\n", timeout)
			return term.ExitCode(term.ExitTimeout)
		case out.failed:
			return term.ExitCode(term.ExitFailure)
		}
		return nil
	})
	cmd.AddCommand(a.contextCmd())
	return cmd
}

// readCode reads a file, or standard input.
func (a codeCommands) readCode(files []string) (string, error) {
	from, name := a.Stdin, "standard input"
	if len(files) > 0 && files[0] != "-" {
		name = files[0]
		f, err := os.Open(name)
		if err != nil {
			return "", term.Unreadable(name, err)
		}
		defer f.Close()
		from = f
	} else if term.IsTerminal(a.Stdin) {
		a.Notef("reading code until Ctrl-D; see also --code\n")
	}
	text, err := io.ReadAll(io.LimitReader(from, maxCode+1))
	if err == nil && len(text) > maxCode {
		return "", &sandbox.Error{Code: sandbox.CodeInvalid, Subject: name, Message: "is more than 1 MiB of code"}
	}
	return string(text), err
}

// codeOutput shows what code does.
type codeOutput struct {
	*target.Env
	dir   string // for pictures and documents; empty: they are only mentioned
	json  bool
	files int // written

	failed, timedOut bool
}

// show shows an event. What code prints is passed on as it is, as output of
// commands is.
func (o *codeOutput) show(e coding.CodeEvent) (err error) {
	o.failed = o.failed || e.Type == coding.CodeFailed
	o.timedOut = o.timedOut || e.TimedOut
	switch {
	case o.json:
		err = o.PrintJSONLine(e)
	case e.Type == coding.CodeStdout:
		_, err = io.WriteString(o.Stdout, e.Text)
	case e.Type == coding.CodeStderr:
		_, err = io.WriteString(o.Stderr, e.Text)
	case e.Type == coding.CodeFailed:
		text := e.Error.Traceback
		if text == "" {
			text = e.Error.Name + ": " + e.Error.Value
		}
		_, err = io.WriteString(o.Stderr, term.Visible(strings.TrimRight(text, "\n"))+"\n")
	case e.Type == coding.CodeShown && e.Result.Text != "":
		_, err = io.WriteString(o.Stdout, term.Visible(e.Result.Text)+"\n")
	}
	if err != nil || e.Type != coding.CodeShown {
		return err
	}
	for _, f := range []struct {
		kind, extension string
		content         []byte
	}{
		{"picture", "png", e.Result.PNG},
		{"picture", "jpeg", e.Result.JPEG},
		{"picture", "svg", []byte(e.Result.SVG)},
		{"document", "pdf", e.Result.PDF},
		{"page", "html", []byte(e.Result.HTML)},
	} {
		if err := o.keep(f.kind, f.extension, f.content); err != nil {
			return err
		}
	}
	return nil
}

// keep writes a form of a result to a file, or mentions it.
func (o *codeOutput) keep(kind, extension string, content []byte) error {
	switch {
	case len(content) == 0, o.dir == "" && (o.json || extension == "html"):
		return nil
	case o.dir == "":
		o.Notef("a %s of %s, %s; --save DIRECTORY keeps it\n", kind, units.BytesSize(float64(len(content))), extension)
		return nil
	}
	if err := os.MkdirAll(o.dir, 0o777); err != nil {
		return err
	}
	for {
		o.files++
		name := filepath.Join(o.dir, strconv.Itoa(o.files)+"."+extension)
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if os.IsExist(err) {
			continue // of an earlier call
		}
		if err != nil {
			return err
		}
		if _, err := f.Write(content); err != nil {
			_ = f.Close()
			return err
		}
		o.Notef("saved %s\n", name)
		return f.Close()
	}
}

func (a codeCommands) contextCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "context", Short: "Manage contexts, which have variables of their own",
		Example: `  atoll code context ls demo
  atoll code context create --language bash demo`,
	}, a.contextsCmd(), a.createContextCmd(),
		a.onContext("restart", "Forget the variables of a context", (*atoll.Sandbox).RestartCodeContext),
		a.onContext("interrupt", "Interrupt what a context executes, and keep its variables", (*atoll.Sandbox).InterruptCodeContext),
		a.onContext("rm", "Remove a context", (*atoll.Sandbox).RemoveCodeContext))
}

func (a codeCommands) contextsCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls SANDBOX", Short: "List the contexts of a sandbox", Example: "  atoll code context ls demo",
		Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		sb, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		all, err := sb.CodeContexts(ctx)
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.PrintJSON(append([]coding.CodeContext{}, all...))
		}
		rows := make([][]string, len(all))
		for i, c := range all {
			rows[i] = []string{c.ID, c.Language, c.Dir}
		}
		return a.Table("ID LANGUAGE DIRECTORY", rows)
	})
	return cmd
}

func (a codeCommands) createContextCmd() *cobra.Command {
	var n coding.NewCodeContext
	var asJSON bool
	cmd := &cobra.Command{
		Use: "create SANDBOX", Short: "Make a context, and print its id",
		Example: "  atoll code context create --language bash demo",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.Flags().StringVarP(&n.Language, "language", "l", "", "python, javascript, typescript, bash, r or java (default python)")
	cmd.Flags().StringVarP(&n.Dir, "workdir", "w", "", "its working directory (default: that of the sandbox)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		sb, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		made, err := sb.CreateCodeContext(ctx, n)
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.PrintJSON(made)
		}
		return a.Println(made.ID)
	})
	return cmd
}

// onContext returns a command about one context.
func (a codeCommands) onContext(word, short string, do func(sb *atoll.Sandbox, ctx context.Context, id string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: word + " SANDBOX CONTEXT", Short: short, Example: "  atoll code context " + word + " demo 3f0c8a52-0b6e-4e0c-9d1c-0d6b9a0b7a11",
		Args: cobra.ExactArgs(2), ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		sb, err := a.DaemonSandbox(ctx, args[0])
		if err != nil {
			return err
		}
		return do(sb, ctx, args[1])
	})
	return cmd
}
