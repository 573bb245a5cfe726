package sandboxes

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

// gitCommands are atoll git, atoll search and atoll patch.
type gitCommands struct{ *target.Env }

// maxPatch is the maximum size of a patch from a file or standard input.
const maxPatch = 8 << 20

func (a gitCommands) gitCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "git", Short: "Look at the git repositories of a sandbox", GroupID: resource.GroupSandbox,
		Long: `These commands read repositories with the git of the sandbox, and change nothing. What
can change them is git itself, with atoll exec. A place is SANDBOX or SANDBOX:DIRECTORY.`,
		Example: `  atoll git status demo:/workspace
  atoll git diff demo:/workspace
  atoll git log --max 5 demo:/workspace`,
	}, a.statusCmd(), a.watchCmd(), a.diffCmd(), a.logCmd(), a.showCmd(), a.blameCmd())
}

// place returns the sandbox and the path of SANDBOX or SANDBOX:PATH.
func (a gitCommands) place(ctx context.Context, text string) (sb *atoll.Sandbox, p string, err error) {
	name, p := splitPlace(text)
	switch {
	case name == "":
		name, p = p, ""
	default:
		p = inside(p)
	}
	sb, err = a.DaemonSandbox(ctx, name)
	return sb, p, err
}

// reading returns a command that reads from a repository and shows the result,
// or prints it as JSON.
func reading[T any](a gitCommands, cmd *cobra.Command, get func(ctx context.Context, g atoll.Git, args []string) (T, error), show func(w io.Writer, out T)) *cobra.Command {
	var asJSON bool
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.ValidArgsFunction = completePlace(a.Env)
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		sb, dir, err := a.place(ctx, args[0])
		if err != nil {
			return err
		}
		out, err := get(ctx, sb.Git(dir), args[1:])
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.PrintJSON(out)
		}
		var text strings.Builder
		show(&text, out)
		return a.Printf("%s", term.Painted(text.String()))
	})
	return cmd
}

// line is one line of text from a sandbox, for a terminal.
func line(text string) string { return term.Visible(strings.ReplaceAll(text, "\n", `\n`)) }

func (a gitCommands) statusCmd() *cobra.Command {
	return reading(a, &cobra.Command{
		Use: "status PLACE", Short: "Show the branch and what changed", Args: cobra.ExactArgs(1),
		Long: `Status shows the branch, and one line for each file that differs from the last commit.
The first letter is about the index, the second about the working tree, as in git
status --short.`,
		Example: "  atoll git status demo:/workspace",
	}, func(ctx context.Context, g atoll.Git, _ []string) (coding.GitStatus, error) { return g.Status(ctx) }, showStatus)
}

func (a gitCommands) watchCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "watch PLACE", Short: "Follow the branch, the commits and what changed", Args: cobra.ExactArgs(1),
		Long: `Watch prints a line for the state of the repository and, until it is interrupted, one
for each state that differs from the one before: another branch or commit, or other
files that atoll git status lists. The sandbox is in use while it is watched.`,
		Example: `  atoll git watch demo:/workspace
  atoll git watch --json demo:/workspace`,
		ValidArgsFunction: completePlace(a.Env),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a line of JSON for each state")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		sb, dir, err := a.place(ctx, args[0])
		if err != nil {
			return err
		}
		states, err := sb.Git(dir).Watch(ctx)
		if err != nil {
			return err
		}
		for e, err := range states {
			switch {
			case ctx.Err() != nil:
				return term.ExitCode(130)
			case err != nil:
				return err
			case asJSON:
				err = a.PrintJSONLine(e)
			default:
				err = a.Printf("%s", term.Painted(gitLine(e)))
			}
			if err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return term.ExitCode(130)
		}
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "git.read", Message: "the watch ended", Hint: "start it again"}
	})
	return cmd
}

// gitLine describes the state of a repository in a line.
func gitLine(e coding.GitEvent) string {
	now := time.Now().Format(time.TimeOnly)
	if !e.IsRepo {
		return now + " not in a git repository\n"
	}
	head, commit := e.Head, fmt.Sprintf("%.8s", e.Commit)
	switch {
	case e.Detached:
		head = "detached"
	case commit == "":
		commit = "no commits"
	}
	text := fmt.Sprintf("%s %s %s, %d changed", now, line(head), line(commit), e.Files)
	if e.Upstream != "" {
		text += fmt.Sprintf(", %s: ahead %d, behind %d", line(e.Upstream), e.Ahead, e.Behind)
	}
	return text + "\n"
}

// letters are those of git status --short.
var letters = map[coding.GitChange]string{
	coding.GitUnchanged: " ", coding.GitAdded: "A", coding.GitModified: "M", coding.GitDeleted: "D", coding.GitRenamed: "R", coding.GitCopied: "C",
	coding.GitTypeChange: "T", coding.GitConflicted: "U", coding.GitUntracked: "?", coding.GitIgnored: "!",
}

func showStatus(w io.Writer, s coding.GitStatus) {
	if !s.IsRepo {
		fmt.Fprintln(w, "not in a git repository")
		return
	}
	head := s.Head
	if s.Detached {
		head = "detached at " + s.Commit
	}
	fmt.Fprint(w, "## ", line(head))
	if s.Upstream != "" {
		fmt.Fprintf(w, "...%s, ahead %d, behind %d", line(s.Upstream), s.Ahead, s.Behind)
	}
	fmt.Fprintln(w)
	for _, f := range s.Files {
		x, y := letters[f.Index], letters[f.Worktree]
		if f.Worktree == coding.GitUntracked || f.Worktree == coding.GitIgnored {
			x = y
		}
		fmt.Fprintf(w, "%s%s %s", x, y, line(f.Path))
		if f.OldPath != "" {
			fmt.Fprintf(w, " (from %s)", line(f.OldPath))
		}
		fmt.Fprintln(w)
	}
	more(w, s.Truncated, "files")
}

func more(w io.Writer, truncated bool, what string) {
	if truncated {
		fmt.Fprintf(w, "there are more %s\n", what)
	}
}

func (a gitCommands) diffCmd() *cobra.Command {
	var opts coding.GitDiffOptions
	cmd := &cobra.Command{
		Use: "diff PLACE [FILE...]", Short: "Show changes as a patch", Args: cobra.MinimumNArgs(1),
		Long: `Diff shows what the working tree has that the index has not, with new files that are
not added yet. With --staged it shows what the index has that the last commit has not,
and with --from what changed since a commit.`,
		Example: `  atoll git diff demo:/workspace
  atoll git diff --from HEAD~1 --to HEAD demo:/workspace`,
	}
	cmd.Flags().BoolVar(&opts.Staged, "staged", false, "compare the index with the last commit")
	cmd.Flags().StringVar(&opts.From, "from", "", "compare this commit with --to, or with the working tree")
	cmd.Flags().StringVar(&opts.To, "to", "", "the commit that is compared with --from")
	return reading(a, cmd, func(ctx context.Context, g atoll.Git, files []string) (coding.GitDiff, error) {
		opts.Paths = files
		return g.Diff(ctx, opts)
	}, showDiff)
}

func showDiff(w io.Writer, d coding.GitDiff) { fmt.Fprint(w, term.Visible(d.String())) }

func (a gitCommands) logCmd() *cobra.Command {
	var opts coding.GitLogOptions
	cmd := &cobra.Command{
		Use: "log PLACE [FILE...]", Short: "List commits, the latest first", Args: cobra.MinimumNArgs(1),
		Example: `  atoll git log demo:/workspace
  atoll git log --max 5 --rev main demo:/workspace README.md`,
	}
	cmd.Flags().StringVar(&opts.Rev, "rev", "", "where to begin (default HEAD)")
	cmd.Flags().IntVar(&opts.Max, "max", 0, "at most this many commits, up to 1000 (default 100)")
	cmd.Flags().IntVar(&opts.Skip, "skip", 0, "leave out this many commits first")
	return reading(a, cmd, func(ctx context.Context, g atoll.Git, files []string) (coding.GitLog, error) {
		opts.Paths = files
		return g.Log(ctx, opts)
	}, func(w io.Writer, l coding.GitLog) {
		for _, c := range l.Commits {
			refs := ""
			if len(c.Refs) > 0 {
				refs = " (" + line(strings.Join(c.Refs, ", ")) + ")"
			}
			fmt.Fprintf(w, "%s %s %s%s %s\n", line(c.ShortSHA), c.Author.Time.UTC().Format(time.DateOnly), line(c.Author.Name), refs, line(c.Subject))
		}
		more(w, l.More, "commits")
	})
}

func (a gitCommands) showCmd() *cobra.Command {
	return reading(a, &cobra.Command{
		Use: "show PLACE [COMMIT]", Short: "Show a commit and its changes", Args: cobra.RangeArgs(1, 2),
		Example: `  atoll git show demo:/workspace
  atoll git show demo:/workspace HEAD~1`,
	}, func(ctx context.Context, g atoll.Git, args []string) (coding.GitShow, error) {
		rev := ""
		if len(args) > 0 {
			rev = args[0]
		}
		return g.Show(ctx, rev)
	}, func(w io.Writer, s coding.GitShow) {
		c := s.Commit
		fmt.Fprintf(w, "commit %s\nAuthor: %s <%s>\nDate:   %s\n\n    %s\n", line(c.SHA), line(c.Author.Name), line(c.Author.Email), c.Author.Time.Format(time.RFC3339), line(c.Subject))
		if c.Body != "" {
			fmt.Fprintln(w)
			for text := range strings.SplitSeq(c.Body, "\n") {
				fmt.Fprintln(w, strings.TrimRight("    "+line(text), " "))
			}
		}
		fmt.Fprintln(w)
		if s.Diff != nil {
			showDiff(w, *s.Diff)
		}
	})
}

func (a gitCommands) blameCmd() *cobra.Command {
	var rev string
	cmd := &cobra.Command{
		Use: "blame PLACE FILE", Short: "Show which commits the lines of a file are from", Args: cobra.ExactArgs(2),
		Long:    "The name of the file is relative to the directory of the place.",
		Example: "  atoll git blame demo:/workspace README.md",
	}
	cmd.Flags().StringVar(&rev, "rev", "", "the file as of this commit (default: as it is now)")
	return reading(a, cmd, func(ctx context.Context, g atoll.Git, args []string) (coding.GitBlame, error) {
		return g.Blame(ctx, rev, args[0], 0, 0)
	}, func(w io.Writer, b coding.GitBlame) {
		for _, l := range b.Lines {
			c := b.Commits[l.Commit]
			fmt.Fprintf(w, "%.8s %s %s %4d  %s\n", line(l.Commit), c.Author.Time.Format(time.DateOnly), line(c.Author.Name), l.No, line(l.Text))
		}
		more(w, b.Truncated, "lines")
	})
}

func (a gitCommands) searchCmd() *cobra.Command {
	var req coding.SearchRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use: "search SANDBOX:PATH [EXPRESSION]", Short: "Search files of a sandbox by name and content", GroupID: resource.GroupSandbox,
		Long: `Search prints the files below a directory that have a name, or the lines that match a
regular expression (of Go), or both. It needs no program in the sandbox. It leaves out
.git and node_modules, unless --exclude says something else, and binary files. Exit
code 1 means that nothing was found.`,
		Example: `  atoll search demo:/workspace 'func \w+Handler'
  atoll search demo:/workspace --name '*.go' -i todo
  atoll search demo:/workspace --name 'src/**/*.ts'`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: completePlace(a.Env),
	}
	flags := cmd.Flags()
	flags.StringVar(&req.Name, "name", "", "a pattern of names such as *.go; with a slash it is of paths, such as src/**/*.go")
	flags.BoolVarP(&req.Literal, "fixed-strings", "F", false, "EXPRESSION is text")
	flags.BoolVarP(&req.IgnoreCase, "ignore-case", "i", false, "upper and lower case are the same")
	flags.StringArrayVar(&req.Exclude, "exclude", nil, "names of files and directories to leave out; may be repeated (default .git and node_modules)")
	flags.IntVar(&req.Max, "max", 0, "at most this many matches, up to 10000 (default 200)")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		if name, _ := splitPlace(args[0]); name == "" { // docker search names an image
			return &term.UsageError{Message: "the place has no path", Hint: "write it as " + args[0] + ":/workspace; images are listed by: atoll image ls"}
		}
		sb, p, err := a.place(ctx, args[0])
		if err != nil {
			return err
		}
		if len(args) > 1 {
			req.Content = args[1]
		}
		req.Path = p
		out, err := sb.Files().Search(ctx, req)
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.PrintJSON(out)
		}
		var text strings.Builder
		for _, m := range out.Matches {
			if m.Line == 0 {
				fmt.Fprintln(&text, line(m.Path))
			} else {
				fmt.Fprintf(&text, "%s:%d:%s\n", line(m.Path), m.Line, line(m.Text))
			}
		}
		if err := a.Printf("%s", term.Painted(text.String())); err != nil {
			return err
		}
		if out.Truncated {
			a.Notef("there may be more matches; see --max\n")
		}
		if out.Skipped > 0 {
			a.Notef("files of more than 4 MiB were not searched: %d\n", out.Skipped)
		}
		if len(out.Matches) == 0 {
			return term.ExitCode(term.ExitFailure)
		}
		return nil
	})
	return cmd
}

func (a gitCommands) patchCmd() *cobra.Command {
	var req coding.PatchRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use: "patch SANDBOX:PATH [FILE]", Short: "Apply a patch to files of a sandbox", GroupID: resource.GroupSandbox,
		Long: `Patch applies a unified diff, also one of git, or a patch in the format of the
apply_patch tool: from a file of yours, or from standard input. Names in it are
relative to PATH. Lines may have moved, but not changed. All of it is applied, or
nothing.`,
		Example: `  atoll patch --dry-run demo:/workspace fix.patch
  atoll patch demo:/workspace <fix.patch`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: completePlace(a.Env),
	}
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "only check whether the patch fits")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) (err error) {
		if req.Patch, err = a.readPatch(args[1:]); err != nil {
			return err
		}
		sb, p, err := a.place(ctx, args[0])
		if err != nil {
			return err
		}
		if req.Path = p; p == "" {
			return &term.UsageError{Message: "the place has no path", Hint: "write it as " + args[0] + ":/workspace"}
		}
		out, err := sb.Files().Patch(ctx, req)
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.PrintJSON(out)
		}
		var text strings.Builder
		for _, f := range out.Files {
			fmt.Fprintf(&text, "%s %s", letters[f.Status], line(f.Path))
			if f.OldPath != "" {
				fmt.Fprintf(&text, " (from %s)", line(f.OldPath))
			}
			fmt.Fprintf(&text, " +%d -%d\n", f.Additions, f.Deletions)
		}
		return a.Printf("%s", term.Painted(text.String()))
	})
	return cmd
}

// readPatch reads a file, or standard input.
func (a gitCommands) readPatch(files []string) (string, error) {
	from, name := a.Stdin, "standard input"
	if len(files) > 0 && files[0] != "-" {
		name = files[0]
		f, err := os.Open(name)
		if err != nil {
			return "", term.Unreadable(name, err)
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxPatch+1))
	if err == nil && len(text) > maxPatch {
		return "", &sandbox.Error{Code: sandbox.CodeInvalid, Subject: name, Message: "is a patch of more than 8 MiB"}
	}
	return string(text), err
}
