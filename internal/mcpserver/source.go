package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

type searchArgs struct {
	sandboxArgs
	Path    string `json:"path" jsonschema:"absolute"`
	Content string `json:"content,omitempty" jsonschema:"regular expression for lines"`
	Name    string `json:"name,omitempty" jsonschema:"such as *.go or src/**/*.go"`
}

type patchArgs struct {
	sandboxArgs
	Path  string `json:"path" jsonschema:"absolute directory that names are relative to"`
	Patch string `json:"patch" jsonschema:"unified diff or *** Begin Patch"`
}

type gitArgs struct {
	sandboxArgs
	Action string `json:"action" jsonschema:"status, diff, staged, log, show, blame"`
	Path   string `json:"path,omitempty" jsonschema:"absolute directory"`
	Rev    string `json:"rev,omitempty"`
	File   string `json:"file,omitempty"`
}

// Bounds of the results for a model.
const (
	maxFound = 100
	maxLog   = 30
)

func (s *Server) sourceTools() {
	add(s, "sandbox_search", "Search files", "Search files by name or content.", looks, does(ops.SandboxGet, ops.SandboxFind, ops.FilesList).sometimes(ops.FilesExport), search)
	add(s, "sandbox_patch", "Patch files", "Apply a patch, all or nothing.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.FilesRead, ops.FilesWrite).sometimes(ops.FilesRemove), patch)
	add(s, "sandbox_git", "Read a git repository", "Read a git repository.", looks, does(ops.SandboxGet, ops.SandboxFind, ops.GitRead), readGit)
}

func search(ctx context.Context, c *call, in searchArgs) (coding.SearchResult, error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return coding.SearchResult{}, err
	}
	return b.Files().Search(ctx, coding.SearchRequest{Path: in.Path, Content: in.Content, Name: in.Name, Max: maxFound})
}

func patch(ctx context.Context, c *call, in patchArgs) (coding.PatchResult, error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return coding.PatchResult{}, err
	}
	return b.Files().Patch(ctx, coding.PatchRequest{Path: in.Path, Patch: in.Patch})
}

func readGit(ctx context.Context, c *call, in gitArgs) (json.RawMessage, error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	var paths []string
	if in.File != "" {
		paths = []string{in.File}
	}
	g := b.Git(in.Path)
	switch in.Action {
	case "status":
		return marshal(g.Status(ctx))
	case "diff", "staged":
		d, err := g.Diff(ctx, coding.GitDiffOptions{From: in.Rev, Staged: in.Action == "staged", Paths: paths})
		return marshal(diffOut{Diff: short(d.String())}, err)
	case "log":
		return marshal(g.Log(ctx, coding.GitLogOptions{Rev: in.Rev, Max: maxLog, Paths: paths}))
	case "show":
		show, err := g.Show(ctx, in.Rev)
		out := diffOut{Commit: &show.Commit}
		if show.Diff != nil {
			out.Diff = short(show.Diff.String())
		}
		return marshal(out, err)
	case "blame":
		blame, err := g.Blame(ctx, in.Rev, in.File, 0, 0)
		var text strings.Builder
		for _, l := range blame.Lines {
			fmt.Fprintf(&text, "%.8s %s %d %s\n", l.Commit, blame.Commits[l.Commit].Author.Name, l.No, l.Text)
		}
		return marshal(blameOut{short(text.String())}, err)
	}
	return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "action", Message: "is neither status, diff, staged, log, show nor blame"}
}

type diffOut struct {
	Commit *coding.GitCommit `json:"commit,omitempty"`
	Diff   string            `json:"diff"`
}

type blameOut struct {
	Lines string `json:"lines"`
}

// short keeps the beginning and the end of a long text.
func short(text string) string {
	var e excerpt
	_, _ = e.Write([]byte(text))
	text, _ = e.text()
	return text
}

func marshal(v any, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}
