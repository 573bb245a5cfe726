package code

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluekeyes/go-gitdiff/gitdiff"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

const (
	maxFiles  = 10_000
	maxToken  = 1 << 20 // a path, a message of a commit
	maxHunks  = 16 << 20
	maxOutput = 512 << 20 // of a difference, that is read
)

// tokens reads fields that end with NUL.
type tokens struct {
	r   *bufio.Reader
	err error
}

func newTokens(r io.Reader) *tokens { return &tokens{r: bufio.NewReaderSize(r, 32<<10)} }

// next returns the next field. At the end of the input, and after an error, ok
// is false.
func (t *tokens) next() (field string, ok bool) {
	if t.err != nil {
		return "", false
	}
	var long []byte
	for {
		part, err := t.r.ReadSlice(0)
		long = append(long, part...)
		switch {
		case len(long) > maxToken:
			t.err = malformed("a field is too long")
		case err == nil:
			return string(long[:len(long)-1]), true
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF && len(long) > 0:
			t.err = malformed("the last field does not end")
		default:
			t.err = err
		}
		return "", false
	}
}

// must returns a field that has to be there.
func (t *tokens) must() string {
	field, ok := t.next()
	if !ok && (t.err == nil || t.err == io.EOF) {
		t.err = malformed("it ends too soon")
	}
	return field
}

// end returns what ended the input.
func (t *tokens) end() error {
	if t.err == io.EOF {
		return nil
	}
	return t.err
}

func malformed(format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: gitOp, Message: "the output of git cannot be read: " + fmt.Sprintf(format, args...)}
}

var changes = map[byte]coding.GitChange{
	'.': coding.GitUnchanged, 'A': coding.GitAdded, 'M': coding.GitModified, 'D': coding.GitDeleted,
	'R': coding.GitRenamed, 'C': coding.GitCopied, 'T': coding.GitTypeChange, 'U': coding.GitConflicted,
}

// parseStatus reads the output of git status --porcelain=v2 --branch -z.
func parseStatus(r io.Reader) (*coding.GitStatus, error) {
	out := &coding.GitStatus{IsRepo: true, Files: []coding.GitFileStatus{}}
	t := newTokens(r)
	for {
		line, ok := t.next()
		if !ok {
			return out, t.end()
		}
		if header, ok := strings.CutPrefix(line, "# "); ok {
			branchHeader(out, header)
			continue
		}
		if len(out.Files) == maxFiles {
			out.Truncated = true
			return out, errEnough
		}
		f, err := statusLine(t, line)
		if err != nil {
			return nil, err
		}
		out.Files = append(out.Files, f)
	}
}

func branchHeader(out *coding.GitStatus, header string) {
	name, value, _ := strings.Cut(header, " ")
	switch name {
	case "branch.oid":
		if value != "(initial)" {
			out.Commit = value
		}
	case "branch.head":
		if value == "(detached)" {
			out.Detached = true
		} else {
			out.Head = value
		}
	case "branch.upstream":
		out.Upstream = value
	case "branch.ab":
		ahead, behind, _ := strings.Cut(value, " ")
		out.Ahead = number(strings.TrimPrefix(ahead, "+"))
		out.Behind = number(strings.TrimPrefix(behind, "-"))
	}
}

// number returns 0 for what is no natural number.
func number(s string) int {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

func statusLine(t *tokens, line string) (f coding.GitFileStatus, err error) {
	kind, rest, _ := strings.Cut(line, " ")
	fields := map[string]int{"1": 7, "2": 8, "u": 9, "?": 0, "!": 0}
	n, known := fields[kind]
	if !known {
		return f, malformed("unknown kind of line %q", kind)
	}
	var xy string
	for i := range n {
		field, after, more := strings.Cut(rest, " ")
		if !more {
			return f, malformed("a line has %d fields", i)
		}
		if i == 0 {
			xy = field
		}
		rest = after
	}
	if f.Path = rest; rest == "" {
		return f, malformed("a path is empty")
	}
	switch kind {
	case "?":
		f.Worktree = coding.GitUntracked
		return f, nil
	case "!":
		f.Worktree = coding.GitIgnored
		return f, nil
	case "u":
		f.Index, f.Worktree, f.Conflicted = coding.GitConflicted, coding.GitConflicted, true
		return f, nil
	case "2":
		if f.OldPath = t.must(); t.err != nil {
			return f, t.err
		}
	}
	if len(xy) != 2 {
		return f, malformed("%q is no state", xy)
	}
	var x, y bool
	f.Index, x = changes[xy[0]]
	f.Worktree, y = changes[xy[1]]
	if !x || !y {
		return f, malformed("%q is no state", xy)
	}
	return f, nil
}

// diffLimits bound a difference, in bytes.
type diffLimits struct{ file, all int }

// parseDiff reads the output of git diff --raw --numstat -z --patch: first all
// files, then their counts, then their changes.
func parseDiff(r io.Reader, most diffLimits) (*coding.GitDiff, error) {
	t := newTokens(io.LimitReader(r, maxOutput))
	d := &differ{out: &coding.GitDiff{Files: []coding.GitFileDiff{}}, at: map[string]int{}, most: most, left: most.all}
	for {
		field, ok := t.next()
		switch {
		case !ok:
			return d.out, t.end() // without a change
		case field == "":
			return d.out, d.patch(t.r)
		case field[0] == ':':
			d.raw(t, field)
		default:
			d.count(t, field)
		}
		if t.err != nil {
			return nil, t.err
		}
	}
}

// differ reads a difference.
type differ struct {
	out  *coding.GitDiff
	at   map[string]int // place of a file in out, by path
	most diffLimits
	left int // bytes of changes that there is room for
}

// raw reads ":100644 100644 OID OID M", and one path or two.
func (d *differ) raw(t *tokens, line string) {
	fields := strings.Fields(line[1:])
	if len(fields) != 5 || changes[fields[4][0]] == "" {
		t.err = malformed("a line of raw output has other fields: %.80q", line)
		return
	}
	f := coding.GitFileDiff{Status: changes[fields[4][0]], OldMode: mode(fields[0]), NewMode: mode(fields[1]), Hunks: []coding.GitHunk{}}
	f.Path = t.must()
	if f.Status == coding.GitRenamed || f.Status == coding.GitCopied {
		f.OldPath, f.Path = f.Path, t.must()
	}
	f.Image = slices.Contains(pictures, strings.ToLower(path.Ext(f.Path)))
	i, twice := d.at[f.Path]
	switch {
	case t.err != nil:
	case twice: // a conflicted file is there for its state and for its changes
		d.out.Files[i].OldMode, d.out.Files[i].NewMode = f.OldMode, f.NewMode
		if f.Status == coding.GitConflicted {
			d.out.Files[i].Status = f.Status
		}
	case len(d.out.Files) == maxFiles:
		d.out.Truncated = true
	default:
		d.at[f.Path] = len(d.out.Files)
		d.out.Files = append(d.out.Files, f)
	}
}

var pictures = []string{".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".ico", ".avif", ".svg", ".tif", ".tiff"}

func mode(s string) string {
	if s == "000000" {
		return ""
	}
	return s
}

// count reads "ADDED\tDELETED\tPATH", or without a path, and then two of them.
func (d *differ) count(t *tokens, line string) {
	added, rest, one := strings.Cut(line, "\t")
	deleted, name, two := strings.Cut(rest, "\t")
	if !one || !two {
		t.err = malformed("a line of counts has other fields: %.80q", line)
		return
	}
	if name == "" {
		_, name = t.must(), t.must()
	}
	i, ok := d.at[name]
	if !ok || t.err != nil {
		return
	}
	f := &d.out.Files[i]
	f.Binary = f.Binary || added == "-"
	f.Additions, f.Deletions = number(added), number(deleted)
}

// patch reads changes. Lines of content begin with one of " +-\\", so a line
// that begins another file is always one.
func (d *differ) patch(r *bufio.Reader) error {
	var section []byte
	cut, start := false, true
	for {
		part, err := r.ReadSlice('\n')
		if start && (bytes.HasPrefix(part, []byte("diff --")) || bytes.HasPrefix(part, []byte("* Unmerged path "))) {
			d.file(section, cut)
			section, cut = nil, false
		}
		if room := d.most.file - len(section); len(part) <= room {
			section = append(section, part...)
		} else {
			section, cut = append(section, part[:max(room, 0)]...), true
		}
		start = err == nil
		switch {
		case err == nil || errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF:
			d.file(section, cut)
			return nil
		default:
			return err
		}
	}
}

// file reads the changes of one file. They are truncated if there is no room for
// them.
func (d *differ) file(section []byte, cut bool) {
	if !bytes.HasPrefix(section, []byte("diff --git ")) {
		return // a conflict, which has no hunks
	}
	header := section
	if i := bytes.Index(section, []byte("\n@@ ")); i >= 0 {
		header = section[:i+1]
	}
	i, ok := d.at[nameOf(header)]
	if !ok {
		return
	}
	f := &d.out.Files[i]
	if cut || len(section) > d.left {
		f.Truncated, f.Hunks = true, []coding.GitHunk{}
		return
	}
	d.left -= len(section)
	files, _, err := gitdiff.Parse(bytes.NewReader(section))
	if err != nil || len(files) != 1 {
		f.Truncated = len(header) != len(section)
		return
	}
	f.Hunks = append(f.Hunks, hunks(files[0])...)
}

// nameOf returns the path of the file that a header is about.
func nameOf(header []byte) string {
	files, _, err := gitdiff.Parse(bytes.NewReader(header))
	if err != nil || len(files) != 1 {
		return ""
	}
	if files[0].NewName == "" || files[0].IsDelete {
		return files[0].OldName
	}
	return files[0].NewName
}

func hunks(f *gitdiff.File) []coding.GitHunk {
	var out []coding.GitHunk
	for _, t := range f.TextFragments {
		h := coding.GitHunk{OldStart: int(t.OldPosition), OldLines: int(t.OldLines), NewStart: int(t.NewPosition), NewLines: int(t.NewLines), Header: t.Comment, Lines: []coding.GitLine{}}
		before, after := h.OldStart, h.NewStart
		for _, l := range t.Lines {
			text, ended := strings.CutSuffix(l.Line, "\n")
			line := coding.GitLine{Text: text, NoEnd: !ended}
			switch l.Op {
			case gitdiff.OpAdd:
				line.Type, line.NewNo = coding.GitLineAdded, after
				after++
			case gitdiff.OpDelete:
				line.Type, line.OldNo = coding.GitLineDeleted, before
				before++
			default:
				line.Type, line.OldNo, line.NewNo = coding.GitLineContext, before, after
				before++
				after++
			}
			h.Lines = append(h.Lines, line)
		}
		out = append(out, h)
	}
	return out
}

// logFormat are the fields of a commit, in the order of parseLog.
const logFormat = "--format=%H%x00%h%x00%P%x00%an%x00%ae%x00%aI%x00%cn%x00%ce%x00%cI%x00%D%x00%s%x00%b"

// parseLog reads commits in logFormat, with NUL between them, and at most so
// many.
func parseLog(r io.Reader, most int) (commits []coding.GitCommit, more bool, err error) {
	t := newTokens(r)
	for {
		sha, ok := t.next()
		if !ok {
			return commits, false, t.end()
		}
		if len(commits) == most {
			return commits, true, errEnough
		}
		c := coding.GitCommit{SHA: sha, ShortSHA: t.must(), Parents: strings.Fields(t.must())}
		c.Author, c.Committer = t.person(), t.person()
		c.Refs = refs(t.must())
		c.Subject, c.Body = t.must(), strings.TrimRight(t.must(), "\n")
		if t.err != nil {
			return nil, false, t.err
		}
		commits = append(commits, c)
	}
}

func (t *tokens) person() coding.GitPerson {
	p := coding.GitPerson{Name: t.must(), Email: t.must()}
	p.Time, _ = time.Parse(time.RFC3339, t.must())
	return p
}

// refs reads "HEAD -> refs/heads/main, tag: refs/tags/v1".
func refs(text string) []string {
	out := []string{}
	for name := range strings.SplitSeq(text, ", ") {
		name = strings.TrimPrefix(strings.TrimPrefix(name, "HEAD -> "), "tag: ")
		if name != "" && name != "HEAD" {
			out = append(out, name)
		}
	}
	return out
}

// parseBlame reads the output of git blame --porcelain.
func parseBlame(r io.Reader, maxLines, maxBytes int) (*coding.GitBlame, error) {
	out := &coding.GitBlame{Commits: map[string]coding.GitBlameCommit{}, Lines: []coding.GitBlameLine{}}
	in := bufio.NewReaderSize(io.LimitReader(r, int64(maxBytes)+1), 32<<10)
	var line coding.GitBlameLine
	var commit coding.GitBlameCommit
	size := 0
	for {
		text, err := in.ReadString('\n')
		if size += len(text); size > maxBytes || len(out.Lines) == maxLines && text != "" {
			out.Truncated = true
			return out, errEnough
		}
		if err == io.EOF && text == "" {
			return out, nil
		}
		if err != nil && err != io.EOF {
			return nil, err
		}
		text = strings.TrimSuffix(text, "\n")
		switch {
		case strings.HasPrefix(text, "\t"):
			if line.Commit == "" {
				return nil, malformed("a line has no commit")
			}
			line.Text = text[1:]
			if _, known := out.Commits[line.Commit]; !known {
				out.Commits[line.Commit] = commit
			}
			out.Lines = append(out.Lines, line)
			line, commit = coding.GitBlameLine{}, coding.GitBlameCommit{}
		case line.Commit == "":
			fields := strings.Fields(text)
			if len(fields) < 3 {
				return nil, malformed("%.80q is no commit", text)
			}
			line.Commit, line.No = fields[0], number(fields[2])
		default:
			blameHeader(&commit, text)
		}
	}
}

func blameHeader(c *coding.GitBlameCommit, text string) {
	name, value, _ := strings.Cut(text, " ")
	switch name {
	case "author":
		c.Author.Name = value
	case "author-mail":
		c.Author.Email = strings.TrimSuffix(strings.TrimPrefix(value, "<"), ">")
	case "author-time":
		c.Author.Time = time.Unix(int64(number(value)), 0).UTC()
	case "summary":
		c.Subject = value
	}
}
