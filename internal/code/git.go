package code

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

// Bounds of requests and their defaults.
const (
	defaultFileBytes = 512 << 10
	maxFileBytes     = 2 << 20
	defaultCommits   = 100
	maxCommits       = 1000
	maxContext       = 10
	maxUntracked     = 2000
	maxBlob          = 8 << 20
	maxBlameLines    = 20_000
	maxBlame         = 16 << 20
)

var statusArgs = []string{"status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--find-renames", "--ignore-submodules=dirty"}

// Status returns the state of the repository that a directory is in. An empty
// directory is the working directory of the sandbox.
func (s *Service) Status(ctx context.Context, ref, dir string) (out coding.GitStatus, err error) {
	err = s.git(ctx, ref, dir, func(ctx context.Context, r *repo) error {
		var root string
		err := r.git(ctx, text(&root, maxToken), "rev-parse", "--show-toplevel")
		if f := (*failed)(nil); errors.As(err, &f) && !unborn(f) {
			out.Files = []coding.GitFileStatus{}
			return nil
		}
		if err != nil {
			return err
		}
		var got *coding.GitStatus
		err = r.git(ctx, func(in io.Reader) (err error) {
			got, err = parseStatus(in)
			return err
		}, statusArgs...)
		if err == nil {
			out = *got
			out.Root = strings.TrimSuffix(root, "\n")
		}
		return err
	})
	return out, told(err)
}

// text keeps at most so many bytes of output.
func text(into *string, most int64) func(io.Reader) error {
	return func(in io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(in, most))
		*into = string(data)
		return err
	}
}

// Diff returns a difference.
func (s *Service) Diff(ctx context.Context, ref, dir string, opts coding.GitDiffOptions) (out coding.GitDiff, err error) {
	switch {
	case opts.Context > maxContext:
		return out, invalid(gitOp, "context", "is more than %d", maxContext)
	case opts.MaxBytes < 0 || opts.MaxBytes > maxFileBytes:
		return out, invalid(gitOp, "maxBytes", "is not between 0 and %d", maxFileBytes)
	case opts.To != "" && opts.From == "":
		return out, invalid(gitOp, "to", "needs from")
	}
	if err := revisions(map[string]string{"from": opts.From, "to": opts.To}); err != nil {
		return out, err
	}
	if err := pathspecs(opts.Paths); err != nil {
		return out, err
	}
	err = s.git(ctx, ref, dir, func(ctx context.Context, r *repo) error {
		args := diffArgs("diff", opts.Context)
		switch {
		case opts.To != "":
			return r.diff(ctx, opts.MaxBytes, &out, append(append(args, opts.From, opts.To, "--"), opts.Paths...))
		case opts.From == "" && opts.Staged:
			return r.diff(ctx, opts.MaxBytes, &out, append(append(args, "--cached", "--"), opts.Paths...))
		case opts.From != "":
			args = append(args, opts.From)
		default:
			args = append(args, "--ours") // what a conflicted file is compared with
		}
		return r.worktree(ctx, opts.MaxBytes, &out, append(append(args, "--"), opts.Paths...), opts.Paths)
	})
	return out, told(err)
}

// diffArgs are common to all differences.
func diffArgs(command string, context int) []string {
	lines := max(cmp.Or(context, 3), 0)
	return []string{
		command, "--raw", "--numstat", "-z", "--patch", "--no-color", "--no-ext-diff", "--no-textconv", "--find-renames", "--find-copies", "--no-abbrev",
		"--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=dirty", "--submodule=short", "--unified=" + strconv.Itoa(lines),
	}
}

func (r *repo) diff(ctx context.Context, most int, out *coding.GitDiff, args []string) error {
	return r.run(ctx, program(args...), "", differenceOf(most, out))
}

func differenceOf(most int, out *coding.GitDiff) func(io.Reader) error {
	return func(in io.Reader) error {
		got, err := parseDiff(in, diffLimits{file: cmp.Or(most, defaultFileBytes), all: maxHunks})
		if got != nil {
			*out = *got
		}
		return err
	}
}

// withUntracked compares with a copy of the index that has the untracked files
// too. New objects, if any, are in a temporary directory, so the repository stays
// as it is.
const withUntracked = `t=$(mktemp -d) || exit 125
trap 'rm -rf "$t"' EXIT
i=$(g rev-parse --git-path index) && o=$(cd "$(g rev-parse --git-path objects)" && pwd) && mkdir "$t/objects" || exit 125
if [ -f "$i" ]; then cp -p "$i" "$t/index" || exit 125; fi
export GIT_INDEX_FILE="$t/index" GIT_OBJECT_DIRECTORY="$t/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$o"
g --literal-pathspecs add --intent-to-add --ignore-errors --pathspec-from-file=- --pathspec-file-nul >/dev/null
g "$@"`

// worktree compares the working tree with something. Untracked files are new.
func (r *repo) worktree(ctx context.Context, most int, out *coding.GitDiff, args, paths []string) error {
	var names strings.Builder
	count, more := 0, false
	err := r.git(ctx, func(in io.Reader) error {
		for t := newTokens(in); ; {
			name, ok := t.next()
			switch {
			case !ok:
				return t.end()
			case strings.HasSuffix(name, "/"): // a repository of its own
			case count == maxUntracked:
				more = true
				return errEnough
			default:
				count++
				names.WriteString(name + "\x00")
			}
		}
	}, append([]string{"ls-files", "-z", "--others", "--exclude-standard", "--"}, paths...)...)
	if err != nil {
		return err
	}
	if count == 0 {
		return r.diff(ctx, most, out, args)
	}
	all := append([]string{"/bin/sh", "-c", script(withUntracked), "git"}, args...)
	err = r.run(ctx, all, names.String(), differenceOf(most, out))
	out.Truncated = out.Truncated || more
	return err
}

// Log returns commits, latest first.
func (s *Service) Log(ctx context.Context, ref, dir string, opts coding.GitLogOptions) (out coding.GitLog, err error) {
	if opts.Max < 0 || opts.Max > maxCommits || opts.Skip < 0 {
		return out, invalid(gitOp, "max", "is not between 0 and %d, or skip is negative", maxCommits)
	}
	if err := revision("rev", opts.Rev); err != nil {
		return out, err
	}
	if err := pathspecs(opts.Paths); err != nil {
		return out, err
	}
	err = s.git(ctx, ref, dir, func(ctx context.Context, r *repo) (err error) {
		out, err = r.log(ctx, opts)
		return err
	})
	if opts.Rev == "" && unborn(err) {
		err = nil
	}
	if out.Commits == nil {
		out.Commits = []coding.GitCommit{}
	}
	return out, told(err)
}

func (r *repo) log(ctx context.Context, opts coding.GitLogOptions) (out coding.GitLog, err error) {
	most := cmp.Or(opts.Max, defaultCommits)
	args := []string{"log", "-z", logFormat, "--decorate=full", "--no-color", "--max-count=" + strconv.Itoa(most+1), "--skip=" + strconv.Itoa(opts.Skip), cmp.Or(opts.Rev, "HEAD"), "--"}
	err = r.git(ctx, func(in io.Reader) (err error) {
		out.Commits, out.More, err = parseLog(in, most)
		return err
	}, append(args, opts.Paths...)...)
	return out, err
}

// Show returns a commit with its difference from its first parent, or with a
// file as it was then, of at most so many bytes.
func (s *Service) Show(ctx context.Context, ref, dir, rev, file string, most int64) (out coding.GitShow, err error) {
	if err := revision("rev", rev); err != nil {
		return out, err
	}
	if most < 0 || most > maxBlob {
		return out, invalid(gitOp, "maxBytes", "is not between 0 and %d", maxBlob)
	}
	if file != "" {
		if err := relative(gitOp, "file", file); err != nil {
			return out, err
		}
	}
	err = s.git(ctx, ref, dir, func(ctx context.Context, r *repo) error {
		log, err := r.log(ctx, coding.GitLogOptions{Rev: rev, Max: 1})
		if err != nil {
			return err
		}
		if len(log.Commits) == 0 {
			return &sandbox.Error{Code: sandbox.CodeNotFound, Op: gitOp, Subject: "rev", Message: "there is no such revision"}
		}
		out.Commit = log.Commits[0]
		if file != "" {
			out.Blob, err = r.blob(ctx, out.Commit.SHA, file, cmp.Or(most, defaultFileBytes))
			return err
		}
		args := append(diffArgs("diff-tree", 0), "-r", "--root", "--no-commit-id")
		if len(out.Commit.Parents) > 0 {
			args = append(args, out.Commit.Parents[0])
		}
		out.Diff = &coding.GitDiff{}
		return r.diff(ctx, min(int(most), maxFileBytes), out.Diff, append(args, out.Commit.SHA, "--"))
	})
	return out, told(err)
}

// blob reads a file of a commit, named relative to the directory.
func (r *repo) blob(ctx context.Context, sha, file string, most int64) (*coding.GitBlob, error) {
	object := sha + ":./" + file
	var size, content string
	if err := r.git(ctx, text(&size, 64), "cat-file", "-s", object); err != nil {
		return nil, err
	}
	err := r.git(ctx, func(in io.Reader) error {
		if err := text(&content, most)(in); err != nil {
			return err
		}
		return errEnough
	}, "cat-file", "blob", object)
	if err != nil {
		return nil, err
	}
	n := int64(number(strings.TrimSpace(size)))
	return &coding.GitBlob{Content: []byte(content), Size: n, Truncated: int64(len(content)) < n}, nil
}

// Blame says which commits the lines of a file are from: of all lines, or of
// those from first to last.
func (s *Service) Blame(ctx context.Context, ref, dir, rev, file string, first, last int) (out coding.GitBlame, err error) {
	if err := revision("rev", rev); err != nil {
		return out, err
	}
	if first < 0 || last < 0 || last > 0 && last < first {
		return out, invalid(gitOp, "first", "and last are not a range of lines")
	}
	err = s.git(ctx, ref, dir, func(ctx context.Context, r *repo) error {
		if err := relative(gitOp, "file", file); err != nil {
			return err
		}
		args := []string{"blame", "--porcelain"}
		if first > 0 || last > 0 {
			span := strconv.Itoa(max(first, 1)) + ","
			if last > 0 {
				span += strconv.Itoa(last)
			}
			args = append(args, "-L", span)
		}
		if rev != "" {
			args = append(args, rev)
		}
		var got *coding.GitBlame
		err := r.git(ctx, func(in io.Reader) (err error) {
			got, err = parseBlame(in, maxBlameLines, maxBlame)
			return err
		}, append(args, "--", file)...)
		if err == nil {
			out = *got
		}
		return err
	})
	return out, told(err)
}
