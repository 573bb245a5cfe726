package code

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	gitOp        = "git.read"
	gitTimeout   = time.Minute
	maxComplaint = 4 << 10
)

// settings keep git from running other programs of the repository's choice and
// from depending on the user's configuration.
var settings = []string{
	"safe.directory=*", "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.quotePath=false", "core.pager=cat", "color.ui=false",
	"diff.noprefix=false", "diff.mnemonicPrefix=false", "diff.relative=false", "diff.renameLimit=2000", "log.showSignature=false", "status.relativePaths=false",
}

// repo is a directory of an open sandbox in which git is used.
type repo struct {
	sandbox Sandbox
	id      sandbox.ID
	dir     string // empty: the working directory of the sandbox
}

// git opens a sandbox to read a repository, until do returns.
func (s *Service) git(ctx context.Context, ref, dir string, do func(ctx context.Context, r *repo) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.open(ctx, ref, dir, do)
}

// open opens a sandbox to read a repository, until ctx ends. Reading runs git,
// which is not the caller's choice, so a key that may only read is enough.
func (s *Service) open(ctx context.Context, ref, dir string, do func(ctx context.Context, r *repo) error) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	if dir != "" {
		if err := sandbox.ValidatePath("path", dir); err != nil {
			return err
		}
	}
	sb, err := s.cfg.Find(ctx, ref)
	if err != nil {
		return err
	}
	return s.cfg.Guard.Do(ctx, ops.GitRead, guard.Subject{Sandbox: sb.ID, Name: sb.Name, Subject: dir}, func(ctx context.Context) error {
		if who.AllowIn(sb.ID, ops.ProcessExec) != nil {
			reading := who
			reading.Verbs = []key.Verb{key.Read, key.Exec}
			ctx = guard.WithPrincipal(ctx, reading)
		}
		running, err := s.cfg.Open(ctx, string(sb.ID))
		if err != nil {
			return err
		}
		return do(ctx, &repo{sandbox: running, id: sb.ID, dir: dir})
	})
}

// program returns git with its settings.
func program(args ...string) []string {
	all := []string{"git"}
	for _, s := range settings {
		all = append(all, "-c", s)
	}
	return append(all, args...)
}

// script is program for a shell.
func script(text string) string {
	return "g() { git -c '" + strings.Join(settings, "' -c '") + "' \"$@\"; }\n" + text
}

// failed is a command of git that ended with an error.
type failed struct {
	code      int
	complaint string
}

func (f *failed) Error() string { return f.complaint }

func (f *failed) says(text string) bool { return strings.Contains(f.complaint, text) }

// errEnough ends a command whose further output is not needed.
var errEnough = errors.New("enough output")

// git runs git and passes its output to read. If read returns errEnough, the
// command is ended, which is success.
func (r *repo) git(ctx context.Context, read func(io.Reader) error, args ...string) error {
	return r.run(ctx, program(args...), "", read)
}

// start starts a command. The caller closes it.
func (r *repo) start(ctx context.Context, args []string, stdin bool, most time.Duration) (driver.Process, error) {
	return r.sandbox.Exec(ctx, sandbox.Command{
		Args: args, Dir: r.dir, Stdin: stdin, Timeout: most,
		Env: map[string]string{"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"},
	})
}

// complaint reads what a command says on standard error.
func complaint(p driver.Process) []byte {
	text, _ := io.ReadAll(io.LimitReader(p.Stderr(), maxComplaint))
	_, _ = io.Copy(io.Discard, p.Stderr())
	return text
}

func (r *repo) run(ctx context.Context, args []string, stdin string, read func(io.Reader) error) error {
	p, err := r.start(ctx, args, stdin != "", gitTimeout)
	if err != nil {
		return err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	var said []byte
	var both sync.WaitGroup
	both.Go(func() { said = complaint(p) })
	if stdin != "" {
		both.Go(func() { // a command that ended early says why
			in := p.Stdin()
			_, _ = io.WriteString(in, stdin)
			_ = in.Close()
		})
	}
	err = read(p.Stdout())
	if errors.Is(err, errEnough) {
		_ = p.Close()
		both.Wait()
		return nil
	}
	_, rest := io.Copy(io.Discard, p.Stdout()) // git may have failed, and says why
	both.Wait()
	if bad := r.outcome(ctx, p, said); bad != nil {
		return bad
	}
	return errors.Join(err, rest)
}

// outcome waits for the end of a command, and returns why it failed.
func (r *repo) outcome(ctx context.Context, p driver.Process, said []byte) error {
	exit, err := p.Wait(ctx)
	switch {
	case err != nil:
		return err
	case exit.Reason == sandbox.ReasonTimeout:
		return errLate
	case exit.Reason != sandbox.ReasonExited:
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: gitOp, Message: "git was killed"}
	}
	return r.failure(exit.Code, string(said))
}

var errLate = &sandbox.Error{Code: sandbox.CodeTimeout, Op: gitOp, Message: "git did not end in time"}

// failure returns the error for an exit code and the output of git.
func (r *repo) failure(code int, said string) error {
	switch code {
	case 0:
		return nil
	case 127:
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: gitOp, Message: "the image has no git", Hint: "install git in the sandbox, or use an image that has it"}
	}
	return classify(&failed{code, strings.TrimSpace(strings.ToValidUTF8(said, "\uFFFD"))}, r.dir)
}

// classify turns what git says into an error with a code. What only some
// callers understand stays a failed.
func classify(f *failed, dir string) error {
	switch {
	case f.code == 126 && strings.Contains(strings.ToLower(f.complaint), "no such file or directory"), f.says("cannot change to"):
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: gitOp, Subject: dir, Message: "there is no such directory"}
	case f.says("not a git repository"), f.says("not in a git directory"), f.says("does not have any commits yet"), f.says("ambiguous argument 'HEAD'"), f.says("bad revision 'HEAD'"), f.says("bad default revision 'HEAD'"):
		return f
	case f.says("unknown revision"), f.says("bad revision"), f.says("bad object"), f.says("Not a valid object name"), f.says("invalid object name"), f.says("Needed a single revision"), f.says("no such ref"):
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: gitOp, Subject: "rev", Message: "there is no such revision"}
	case f.says("no such path"), f.says("does not exist in"), f.says("exists on disk, but not in"):
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: gitOp, Subject: "file", Message: "there is no such file in that commit"}
	}
	return &sandbox.Error{Code: sandbox.CodeConflict, Op: gitOp, Message: "git failed: " + strings.TrimPrefix(f.complaint, "fatal: ")}
}

// told turns a failed into an error for callers.
func told(err error) error {
	f := (*failed)(nil)
	if !errors.As(err, &f) {
		return err
	}
	if f.says("not a git repository") || f.says("not in a git directory") {
		return &sandbox.Error{Code: sandbox.CodeConflict, Op: gitOp, Message: "the directory is in no git repository"}
	}
	return &sandbox.Error{Code: sandbox.CodeNotFound, Op: gitOp, Subject: "HEAD", Message: "there are no commits yet"}
}

// unborn reports whether git failed because there are no commits yet.
func unborn(err error) bool {
	f := (*failed)(nil)
	return errors.As(err, &f) && !f.says("not a git repository") && !f.says("not in a git directory")
}

// revision refuses what git would take for an option.
func revision(subject, rev string) error {
	if strings.HasPrefix(rev, "-") || len(rev) > 256 || strings.ContainsFunc(rev, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return invalid(gitOp, subject, "is not the name of a revision")
	}
	return nil
}

func revisions(of map[string]string) error {
	for subject, rev := range of {
		if err := revision(subject, rev); err != nil {
			return err
		}
	}
	return nil
}

func pathspecs(paths []string) error {
	for _, p := range paths {
		if err := relative(gitOp, "paths", p); err != nil {
			return err
		}
	}
	return nil
}
