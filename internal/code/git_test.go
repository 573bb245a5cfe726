package code

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

// worktree is the difference of the working tree of a repository.
func worktree(t *testing.T, r *repo) map[string]coding.GitFileDiff {
	t.Helper()
	var d coding.GitDiff
	if err := r.worktree(t.Context(), 0, &d, append(diffArgs("diff", 0), "--ours", "--"), nil); err != nil {
		t.Fatal(err)
	}
	out := map[string]coding.GitFileDiff{}
	for _, f := range d.Files {
		out[f.Path] = f
	}
	if len(out) != len(d.Files) {
		t.Errorf("a file is twice in %+v", d.Files)
	}
	return out
}

func status(t *testing.T, r *repo) (out *coding.GitStatus) {
	t.Helper()
	err := r.git(t.Context(), func(in io.Reader) (err error) {
		out, err = parseStatus(in)
		return err
	}, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--find-renames")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// RB-88, RB-91: names with spaces, quotes, line ends and bytes that are not
// UTF-8; renames, modes, conflicts and a branch without a commit.
func TestStatusOfRealRepositories(t *testing.T) {
	t.Parallel()
	r := repository(t, "echo x >new; touch '? odd'")
	if s := status(t, r); s.Head != "main" || s.Commit != "" || len(s.Files) != 2 || s.Files[0] != (coding.GitFileStatus{Path: "? odd", Worktree: coding.GitUntracked}) {
		t.Errorf("without a commit: %+v", s)
	}
	inside(t, r.dir, `printf '1\n2\n3\n4\n' >old; echo x >"with space"; printf x >"$(printf 'line\nend\377"')"; git add -A; git commit -qm one
git checkout -qb side; echo side >"with space"; git commit -qam side; git checkout -q main; echo main >"with space"; git commit -qam main
git mv old moved; chmod +x new; rm "$(printf 'line\nend\377"')"; git merge side || true`)
	s := status(t, r)
	want := map[string]coding.GitFileStatus{
		"moved":           {Path: "moved", OldPath: "old", Index: coding.GitRenamed},
		"new":             {Path: "new", Worktree: coding.GitModified},
		"line\nend\xff\"": {Path: "line\nend\xff\"", Worktree: coding.GitDeleted},
	}
	for _, f := range s.Files {
		if w, ok := want[f.Path]; ok && f != w {
			t.Errorf("%q: %+v, want %+v", f.Path, f, w)
		}
		delete(want, f.Path)
	}
	if len(want) > 0 || s.Commit == "" {
		t.Errorf("missing: %+v in %+v", want, s)
	}
	inside(t, r.dir, "git reset -q --hard; git merge side || true")
	if s := status(t, r); len(s.Files) != 1 || s.Files[0] != (coding.GitFileStatus{Path: "with space", Index: coding.GitConflicted, Worktree: coding.GitConflicted, Conflicted: true}) {
		t.Errorf("conflict: %+v", s.Files)
	}
	if d := worktree(t, r)["with space"]; d.Status != coding.GitConflicted || len(d.Hunks) == 0 {
		t.Errorf("difference of a conflict: %+v", d)
	}
	inside(t, r.dir, "git reset -q --hard; git checkout -q --detach; git checkout -q -b tracked; git branch -q -u main; echo 1 >1; git add 1; git commit -qm ahead")
	if s := status(t, r); s.Upstream != "main" || s.Ahead != 1 || s.Behind != 0 {
		t.Errorf("upstream: %+v", s)
	}
	inside(t, r.dir, "git checkout -q --detach")
	if s := status(t, r); !s.Detached || s.Head != "" {
		t.Errorf("detached: %+v", s)
	}
}

// RB-85, RB-89, RB-90: renames, copies, modes, binary files, untracked files,
// changes of the type, and content that looks like a header.
func TestDifferences(t *testing.T) {
	t.Parallel()
	r := repository(t, `seq 20 >old; printf -- '-- a\n++ b\n' >odd; printf '\0' >bin.png; printf 'no end' >end; ln -s old link; echo x >mode; echo x >gone; echo b >'b'
git add -A; git commit -qm one
git mv old moved; echo more >>moved; printf -- '++ b\ndiff --git a/x b/x\n@@ -1 +1 @@\n' >odd; printf '\0\1' >bin.png; printf 'still none' >end; rm link; echo file >link; chmod +x mode; rm gone
mkdir -p 'new dir'; echo 1 >'new dir/a "file"'; printf 'secret' >ignored; echo ignored >.gitignore; git init -q nested; touch nested/inside`)
	before := listing(t, r.dir)
	d := worktree(t, r)
	if after := listing(t, r.dir); after != before {
		t.Errorf("looking changed the repository:\n%s\nnow\n%s", before, after)
	}
	check := func(name string, status coding.GitChange, added, deleted, hunks int) coding.GitFileDiff {
		t.Helper()
		f, ok := d[name]
		if !ok || f.Status != status || f.Additions != added || f.Deletions != deleted || len(f.Hunks) != hunks || f.Truncated {
			t.Errorf("%s: %t %+v, want %s +%d -%d and %d hunks", name, ok, f, status, added, deleted, hunks)
		}
		return f
	}
	check("moved", coding.GitModified, 1, 0, 1) // the index has the rename
	odd := check("odd", coding.GitModified, 2, 1, 1)
	if len(odd.Hunks) > 0 {
		text := ""
		for _, l := range odd.Hunks[0].Lines {
			text += l.Type + ":" + l.Text + "|"
		}
		if text != "del:-- a|context:++ b|add:diff --git a/x b/x|add:@@ -1 +1 @@|" {
			t.Errorf("odd content: %s", text)
		}
	}
	if f := check("bin.png", coding.GitModified, 0, 0, 0); !f.Binary || !f.Image {
		t.Errorf("binary: %+v", f)
	}
	if f := check("end", coding.GitModified, 1, 1, 1); len(f.Hunks) == 1 && (!f.Hunks[0].Lines[0].NoEnd || !f.Hunks[0].Lines[1].NoEnd || f.Hunks[0].Lines[1].NewNo != 1) {
		t.Errorf("without an end: %+v", f.Hunks)
	}
	check("link", coding.GitTypeChange, 1, 1, 2)
	if f := check("mode", coding.GitModified, 0, 0, 0); f.OldMode != "100644" || f.NewMode != "100755" {
		t.Errorf("mode: %+v", f)
	}
	check("gone", coding.GitDeleted, 0, 1, 1)
	check(`new dir/a "file"`, coding.GitAdded, 1, 0, 1)
	check(".gitignore", coding.GitAdded, 1, 0, 1)
	if len(d) != 9 {
		t.Errorf("%d files: %+v", len(d), d)
	}
	var staged coding.GitDiff
	if err := r.diff(t.Context(), 0, &staged, append(diffArgs("diff", 0), "--cached", "--")); err != nil || len(staged.Files) != 1 || staged.Files[0].Status != coding.GitRenamed || staged.Files[0].OldPath != "old" {
		t.Errorf("staged: %+v, %v", staged, err)
	}
}

// listing is what is in a directory, without times.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			out.WriteString(name + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// RB-85: the first commit is compared with nothing, a merge with its first
// parent, and a worktree of its own is a repository too (RB-83).
func TestCommitsOfRealRepositories(t *testing.T) {
	t.Parallel()
	r := repository(t, `echo 1 >a; git add -A; git commit -qm 'first

the body
of it'; git tag v1; git checkout -qb side; echo 2 >b; git add b; git commit -qm side; git checkout -q main; echo 3 >c; git add c; git commit -qm third; git merge -q --no-edit side; git worktree add -q ../tree$$ side; echo ../tree$$ >.git/where`)
	log, err := r.log(t.Context(), coding.GitLogOptions{})
	if err != nil || len(log.Commits) != 4 || log.More {
		t.Fatal(log, err)
	}
	first, merge := log.Commits[3], log.Commits[0]
	if first.Subject != "first" || first.Body != "the body\nof it" || len(first.Parents) != 0 || len(first.Refs) != 1 || first.Refs[0] != "refs/tags/v1" || first.Author.Name != "Ada" || first.Author.Email != "ada@example.com" || first.Author.Time.IsZero() || !strings.HasPrefix(first.SHA, first.ShortSHA) {
		t.Errorf("first: %+v", first)
	}
	if len(merge.Parents) != 2 || len(merge.Refs) != 1 || merge.Refs[0] != "refs/heads/main" {
		t.Errorf("merge: %+v", merge)
	}
	if log, err := r.log(t.Context(), coding.GitLogOptions{Max: 2, Skip: 1}); err != nil || len(log.Commits) != 2 || !log.More {
		t.Errorf("a part: %+v, %v", log, err)
	}
	var root coding.GitDiff
	if err := r.diff(t.Context(), 0, &root, append(diffArgs("diff-tree", 0), "-r", "--root", "--no-commit-id", first.SHA, "--")); err != nil || len(root.Files) != 1 || root.Files[0].Status != coding.GitAdded || len(root.Files[0].Hunks) != 1 {
		t.Errorf("first commit: %+v, %v", root, err)
	}
	if b, err := r.blob(t.Context(), merge.SHA, "a", 1); err != nil || string(b.Content) != "1" || b.Size != 2 || !b.Truncated {
		t.Errorf("blob: %+v, %v", b, err)
	}
	if _, err := r.blob(t.Context(), merge.SHA, "missing", 1); sandbox.CodeOf(told(err)) != sandbox.CodeNotFound {
		t.Errorf("missing: %v", err)
	}
	if _, err := r.log(t.Context(), coding.GitLogOptions{Rev: "nothing"}); sandbox.CodeOf(told(err)) != sandbox.CodeNotFound || !strings.Contains(told(err).Error(), "no such revision") {
		t.Errorf("no such revision: %v", told(err))
	}
	where, err := os.ReadFile(filepath.Join(r.dir, ".git/where"))
	if err != nil {
		t.Fatal(err)
	}
	tree := &repo{sandbox: r.sandbox, dir: filepath.Join(r.dir, strings.TrimSpace(string(where)))}
	put(t, filepath.Join(tree.dir, "deep/er/new"), "x")
	if s := status(t, tree); s.Head != "side" || len(s.Files) != 1 || s.Files[0].Path != "deep/er/new" {
		t.Errorf("worktree: %+v", s)
	}
	if d := worktree(t, &repo{sandbox: r.sandbox, dir: filepath.Join(tree.dir, "deep")}); len(d) != 1 || d["deep/er/new"].Additions != 1 {
		t.Errorf("difference in a directory of a worktree: %+v", d)
	}
	var blame *coding.GitBlame
	inside(t, r.dir, "echo later >>a")
	err = r.git(t.Context(), func(in io.Reader) (err error) {
		blame, err = parseBlame(in, 10, 1<<20)
		return err
	}, "blame", "--porcelain", "--", "a")
	if err != nil || len(blame.Lines) != 2 || blame.Lines[0].Commit != first.SHA || blame.Commits[first.SHA].Subject != "first" || blame.Lines[1].No != 2 || strings.Trim(blame.Lines[1].Commit, "0") != "" {
		t.Errorf("blame: %+v, %v", blame, err)
	}
	empty := repository(t, "")
	if _, err := empty.log(t.Context(), coding.GitLogOptions{}); !unborn(err) {
		t.Errorf("without a commit: %v", err)
	}
	f := (*failed)(nil)
	outside := &repo{sandbox: r.sandbox, dir: t.TempDir()}
	if _, err := outside.log(t.Context(), coding.GitLogOptions{}); !errors.As(err, &f) || unborn(err) || sandbox.CodeOf(told(err)) != sandbox.CodeConflict {
		t.Errorf("outside: %v", err)
	}
}

// A file with too many changes has none of them, and the others stay (RB-90).
func TestLargeDifferencesAreTruncated(t *testing.T) {
	t.Parallel()
	r := repository(t, `seq 1000 >large; echo 1 >small; git add -A; git commit -qm one; seq 2000 3000 >large; echo 2 >small`)
	var d coding.GitDiff
	if err := r.diff(t.Context(), 1000, &d, append(diffArgs("diff", 0), "--")); err != nil || len(d.Files) != 2 {
		t.Fatal(d, err)
	}
	if f := d.Files[0]; !f.Truncated || len(f.Hunks) != 0 || f.Additions != 1001 || f.Deletions != 1000 {
		t.Errorf("large: %+v", f)
	}
	if f := d.Files[1]; f.Truncated || len(f.Hunks) != 1 {
		t.Errorf("small: %+v", f)
	}
}

// RB-81: what git would take for an option, or a path that leads out.
func TestRevisionsAndPaths(t *testing.T) {
	t.Parallel()
	for _, rev := range []string{"--output=/tmp/x", "-p", "a b", "a\nb", "a\x00"} {
		if sandbox.CodeOf(revision("rev", rev)) != sandbox.CodeInvalid {
			t.Errorf("revision %q is allowed", rev)
		}
	}
	for _, p := range []string{"", "/etc", "../x", "a/../../b", "a\x00"} {
		if sandbox.CodeOf(relative("git", "file", p)) != sandbox.CodeInvalid {
			t.Errorf("path %q is allowed", p)
		}
	}
	if err := errors.Join(revision("rev", "HEAD~2^{tree}"), relative("git", "file", "a/..b/c")); err != nil {
		t.Error(err)
	}
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte("# branch.head main\x001 .M N... 100644 100644 100644 a b c d\x002 R. N... 100644 100644 100644 a b R100 to\x00from\x00u UU N... 1 2 3 4 a b c f\x00? x\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseStatus(bytes.NewReader(data))
		if err == nil && s == nil {
			t.Error("neither a status nor an error")
		}
	})
}

func FuzzDiff(f *testing.F) {
	f.Add([]byte(":100644 100644 a b M\x00x\x001\t0\tx\x00\x00diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n a\n+b\n"))
	f.Add([]byte(":100644 100644 a b R090\x00x\x00y\x001\t0\t\x00x\x00y\x00\x00diff --git a/x b/y\nsimilarity index 90%\nrename from x\nrename to y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := parseDiff(bytes.NewReader(data), diffLimits{file: 1 << 10, all: 1 << 12})
		if err != nil {
			return
		}
		for _, file := range d.Files {
			if file.Hunks == nil || file.Truncated && len(file.Hunks) > 0 {
				t.Errorf("%+v", file)
			}
		}
	})
}

func FuzzLogAndBlame(f *testing.F) {
	f.Add([]byte("a\x00a\x00\x00n\x00e\x002026-01-01T00:00:00Z\x00n\x00e\x002026-01-01T00:00:00Z\x00HEAD -> refs/heads/main\x00s\x00b\x00"))
	f.Add([]byte("aaaa 1 1 1\nauthor A\nauthor-mail <a@b>\nauthor-time 1\nsummary s\nfilename x\n\tline\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _, _ = parseLog(bytes.NewReader(data), 3)
		_, _ = parseBlame(bytes.NewReader(data), 3, 1<<10)
	})
}
