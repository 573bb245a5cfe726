// Package coding describes work on source code in a sandbox: git, searches,
// patches and code contexts.
package coding

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// GitStatus is the state of a git repository in a sandbox.
type GitStatus struct {
	// IsRepo is false outside of a repository. Everything else is empty then.
	IsRepo   bool            `json:"isRepo"`
	Root     string          `json:"root,omitempty" doc:"the top directory of the working tree; paths are relative to it"`
	Head     string          `json:"head,omitempty" doc:"the current branch; empty if HEAD is detached"`
	Commit   string          `json:"commit,omitempty" doc:"the current commit; empty before the first one"`
	Detached bool            `json:"detached,omitempty"`
	Upstream string          `json:"upstream,omitempty"`
	Ahead    int             `json:"ahead" doc:"commits that the upstream lacks"`
	Behind   int             `json:"behind" doc:"commits of the upstream that are missing here"`
	Files    []GitFileStatus `json:"files"`
	// Truncated says that there are more files.
	Truncated bool `json:"truncated,omitempty"`
}

// GitEvent is the state of a watched repository, without its files.
type GitEvent struct {
	// IsRepo is false outside of a repository. The state is empty then.
	IsRepo   bool   `json:"isRepo"`
	Head     string `json:"head,omitempty" doc:"the current branch; empty if HEAD is detached"`
	Commit   string `json:"commit,omitempty" doc:"the current commit; empty before the first one"`
	Detached bool   `json:"detached,omitempty"`
	Upstream string `json:"upstream,omitempty"`
	Ahead    int    `json:"ahead" doc:"commits that the upstream lacks"`
	Behind   int    `json:"behind" doc:"commits of the upstream that are missing here"`
	Dirty    bool   `json:"dirty" doc:"some file differs from the current commit"`
	// Files is the number of files that GitStatus would list.
	Files  int       `json:"changedFileCount"`
	Reason GitReason `json:"reason" enum:"start,watch,poll"`
	// Revision grows by one with each state of a watched directory. It is the same
	// for all that watch it now; after nobody did, it continues at a higher number.
	Revision   int64 `json:"revision"`
	LeaseEpoch int64 `json:"leaseEpoch,omitempty" doc:"which sandbox of the session, if a session is watched"`
}

// GitReason is why the state of a watched repository was read.
type GitReason string

// The reasons.
const (
	GitStart GitReason = "start" // the watch began
	GitWatch GitReason = "watch" // files changed
	GitPoll  GitReason = "poll"  // it was time to look, as not every change of files is reported
)

// GitChange is how a file changed.
type GitChange string

// The changes.
const (
	GitUnchanged  GitChange = ""
	GitAdded      GitChange = "added"
	GitModified   GitChange = "modified"
	GitDeleted    GitChange = "deleted"
	GitRenamed    GitChange = "renamed"
	GitCopied     GitChange = "copied"
	GitTypeChange GitChange = "typechange" // for example, a file became a link
	GitConflicted GitChange = "conflicted"
	GitUntracked  GitChange = "untracked"
	GitIgnored    GitChange = "ignored"
)

// GitFileStatus is a file that differs from the current commit. A byte of a path
// that is not UTF-8 is U+FFFD in JSON.
type GitFileStatus struct {
	Path       string    `json:"path"`
	OldPath    string    `json:"oldPath,omitempty" doc:"of a renamed or copied file"`
	Index      GitChange `json:"index,omitempty" doc:"the index compared with the commit"`
	Worktree   GitChange `json:"worktree,omitempty" doc:"the working tree compared with the index"`
	Conflicted bool      `json:"conflicted,omitempty"`
}

// GitDiffOptions select a difference. From and To win over Staged, which wins
// over the working tree.
type GitDiffOptions struct {
	Staged   bool     // the index compared with the current commit
	From, To string   // commits; without To, From is compared with the working tree
	Paths    []string // only these files and directories, relative to the directory
	Context  int      // lines around changes, at most 10; 0 means 3, negative none
	MaxBytes int      // of the changes of one file, at most 2 MiB; 0 means 512 KiB
}

// GitDiff is a difference.
type GitDiff struct {
	Files []GitFileDiff `json:"files"`
	// Truncated says that there are more files.
	Truncated bool `json:"truncated,omitempty" doc:"there are more files, or more untracked ones"`
}

// GitFileDiff is how a file differs.
type GitFileDiff struct {
	Path      string    `json:"path"`
	OldPath   string    `json:"oldPath,omitempty" doc:"of a renamed or copied file"`
	Status    GitChange `json:"status"`
	OldMode   string    `json:"oldMode,omitempty" doc:"in octal, as 100644; left out if there was no file"`
	NewMode   string    `json:"newMode,omitempty"`
	Binary    bool      `json:"binary,omitempty"`
	Image     bool      `json:"image,omitempty" doc:"a picture, by its name"`
	Additions int       `json:"additions" doc:"lines; 0 for a binary file"`
	Deletions int       `json:"deletions"`
	Hunks     []GitHunk `json:"hunks"`
	// Truncated says that the changes are too large, so Hunks is empty.
	Truncated bool `json:"truncated,omitempty" doc:"the changes are too large, so there are no hunks"`
}

// GitHunk is a part of a file that changed.
type GitHunk struct {
	OldStart int       `json:"oldStart"`
	OldLines int       `json:"oldLines"`
	NewStart int       `json:"newStart"`
	NewLines int       `json:"newLines"`
	Header   string    `json:"header,omitempty" doc:"what git thinks the hunk is in, such as a function"`
	Lines    []GitLine `json:"lines"`
}

// Types of a GitLine.
const (
	GitLineContext = "context"
	GitLineAdded   = "add"
	GitLineDeleted = "del"
)

// GitLine is a line of a hunk.
type GitLine struct {
	Type  string `json:"type" enum:"context,add,del"`
	OldNo int    `json:"oldNo,omitempty" doc:"number of the line before; left out for an added one"`
	NewNo int    `json:"newNo,omitempty"`
	Text  string `json:"text" doc:"without the end of the line"`
	NoEnd bool   `json:"noEnd,omitempty" doc:"the file ends here, without an end of the line"`
}

// GitPerson made a commit.
type GitPerson struct {
	Name  string    `json:"name"`
	Email string    `json:"email"`
	Time  time.Time `json:"time"`
}

// GitCommit is a commit.
type GitCommit struct {
	SHA       string    `json:"sha"`
	ShortSHA  string    `json:"shortSha"`
	Parents   []string  `json:"parents"`
	Author    GitPerson `json:"author"`
	Committer GitPerson `json:"committer"`
	Subject   string    `json:"subject"`
	Body      string    `json:"body,omitempty"`
	Refs      []string  `json:"refs" doc:"branches and tags that are at this commit, such as refs/heads/main"`
}

// GitLogOptions select commits.
type GitLogOptions struct {
	Rev   string   // where to begin; empty: HEAD
	Max   int      // commits, at most 1000; 0 means 100
	Skip  int      // commits to leave out first
	Paths []string // only commits that changed these
}

// GitLog is a part of a history, latest commits first. Before the first commit
// it is empty.
type GitLog struct {
	Commits []GitCommit `json:"commits"`
	More    bool        `json:"more,omitempty" doc:"there are earlier commits"`
}

// GitShow is a commit, with its difference from its first parent, or with one
// file as it was then.
type GitShow struct {
	Commit GitCommit `json:"commit"`
	Diff   *GitDiff  `json:"diff,omitempty" doc:"if no file was asked for"`
	Blob   *GitBlob  `json:"blob,omitempty" doc:"if a file was asked for"`
}

// GitBlob is the content of a file in a commit.
type GitBlob struct {
	Content   []byte `json:"content"`
	Size      int64  `json:"size" doc:"bytes of the whole file"`
	Truncated bool   `json:"truncated,omitempty" doc:"the file has more than was asked for"`
}

// GitBlame says which commits the lines of a file are from.
type GitBlame struct {
	Commits map[string]GitBlameCommit `json:"commits" doc:"by sha; one of zeros only is what is not committed yet"`
	Lines   []GitBlameLine            `json:"lines"`
	// Truncated says that there are more lines.
	Truncated bool `json:"truncated,omitempty"`
}

// GitBlameCommit is a commit that lines are from.
type GitBlameCommit struct {
	Author  GitPerson `json:"author"`
	Subject string    `json:"subject"`
}

// GitBlameLine is a line of a file.
type GitBlameLine struct {
	No     int    `json:"no" doc:"number of the line"`
	Commit string `json:"commit" doc:"sha"`
	Text   string `json:"text"`
}

// String returns the difference as git writes it. What is too large to be in it
// is mentioned.
func (d GitDiff) String() string {
	var w strings.Builder
	for i := range d.Files {
		d.Files[i].write(&w)
	}
	if d.Truncated {
		w.WriteString("there are more files\n")
	}
	return w.String()
}

var gitMarks = map[string]string{GitLineAdded: "+", GitLineDeleted: "-", GitLineContext: " "}

func (f *GitFileDiff) write(w *strings.Builder) {
	before := cmp.Or(f.OldPath, f.Path)
	from, to := gitName("a/", before), gitName("b/", f.Path)
	fmt.Fprintf(w, "diff --git %s %s\n", from, to)
	switch {
	case f.Status == GitAdded:
		fmt.Fprintf(w, "new file mode %s\n", f.NewMode)
		from = "/dev/null"
	case f.Status == GitDeleted:
		fmt.Fprintf(w, "deleted file mode %s\n", f.OldMode)
		to = "/dev/null"
	case f.OldMode != f.NewMode && f.OldMode != "" && f.NewMode != "":
		fmt.Fprintf(w, "old mode %s\nnew mode %s\n", f.OldMode, f.NewMode)
	}
	if f.OldPath != "" {
		verb := "rename"
		if f.Status == GitCopied {
			verb = "copy"
		}
		fmt.Fprintf(w, "%s from %s\n%s to %s\n", verb, gitName("", before), verb, gitName("", f.Path))
	}
	switch {
	case f.Binary:
		w.WriteString("Binary files differ\n")
	case f.Truncated:
		fmt.Fprintf(w, "too large to show: %d lines more, %d lines less\n", f.Additions, f.Deletions)
	case len(f.Hunks) > 0:
		fmt.Fprintf(w, "--- %s\n+++ %s\n", from, to)
	}
	for _, h := range f.Hunks {
		fmt.Fprintf(w, "@@ -%d,%d +%d,%d @@", h.OldStart, h.OldLines, h.NewStart, h.NewLines)
		if h.Header != "" {
			w.WriteString(" " + h.Header)
		}
		w.WriteByte('\n')
		for _, l := range h.Lines {
			w.WriteString(gitMarks[l.Type] + l.Text + "\n")
			if l.NoEnd {
				w.WriteString("\\ No newline at end of file\n")
			}
		}
	}
}

// gitName quotes a name that would not be one in a line.
func gitName(prefix, name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || r == '"' || r == '\\' }) {
		return strconv.Quote(prefix + name)
	}
	return prefix + name
}
