package api

import (
	"context"
	"io"
	"iter"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

// Source works with source code in sandboxes. A dir is an absolute path in the
// sandbox, or empty for its working directory.
type Source interface {
	Search(ctx context.Context, ref string, req coding.SearchRequest) (coding.SearchResult, error)
	Patch(ctx context.Context, ref string, req coding.PatchRequest) (coding.PatchResult, error)
	// Write is Files.Write if the file has the expected SHA-256, in hexadecimal.
	Write(ctx context.Context, ref, name string, r io.Reader, opts driver.WriteOptions, expect string) (sandbox.FileInfo, error)

	Status(ctx context.Context, ref, dir string) (coding.GitStatus, error)
	Diff(ctx context.Context, ref, dir string, opts coding.GitDiffOptions) (coding.GitDiff, error)
	Log(ctx context.Context, ref, dir string, opts coding.GitLogOptions) (coding.GitLog, error)
	// Show returns a commit with its difference or, with a file, with at most so
	// many bytes of that file.
	Show(ctx context.Context, ref, dir, rev, file string, maxBytes int64) (coding.GitShow, error)
	Blame(ctx context.Context, ref, dir, rev, file string, first, last int) (coding.GitBlame, error)
	// Watch yields the state of a repository and then, until ctx ends, each state
	// that differs from the one before.
	Watch(ctx context.Context, ref, dir string) (iter.Seq2[coding.GitEvent, error], error)
}

type searchInput struct {
	SandboxRef
	Body coding.SearchRequest
}

type searchOutput struct{ Body coding.SearchResult }

type patchInput struct {
	SandboxRef
	Body coding.PatchRequest
}

type patchOutput struct{ Body coding.PatchResult }

// GitRef names a directory in a repository of a sandbox.
type GitRef struct {
	SandboxRef
	Path string `query:"path" maxLength:"4096" doc:"absolute path of a directory in the repository; the working directory of the sandbox if it is left out"`
}

type gitStatusOutput struct{ Body coding.GitStatus }

type gitDiffInput struct {
	GitRef
	Staged   bool     `query:"staged" doc:"the index compared with the current commit"`
	From     string   `query:"from" maxLength:"256" doc:"a commit; it is compared with to or with the working tree"`
	To       string   `query:"to" maxLength:"256" doc:"a commit"`
	Paths    []string `query:"paths,explode" maxItems:"100" doc:"only these files and directories, relative to path"`
	Context  int      `query:"context" minimum:"-1" maximum:"10" doc:"lines around changes; 3 if it is left out, -1 for none"`
	MaxBytes int      `query:"maxBytes" minimum:"0" maximum:"2097152" doc:"of the changes of one file; 524288 if it is left out"`
}

type gitDiffOutput struct{ Body coding.GitDiff }

type gitLogInput struct {
	GitRef
	Rev   string   `query:"rev" maxLength:"256" doc:"where to begin; HEAD if it is left out"`
	Max   int      `query:"max" minimum:"0" maximum:"1000" doc:"commits; 100 if it is left out"`
	Skip  int      `query:"skip" minimum:"0" doc:"commits to leave out first"`
	Paths []string `query:"paths,explode" maxItems:"100" doc:"only commits that changed these files or directories, relative to path"`
}

type gitLogOutput struct{ Body coding.GitLog }

type gitShowInput struct {
	GitRef
	Rev      string `query:"rev" maxLength:"256" doc:"a commit; HEAD if it is left out"`
	File     string `query:"file" maxLength:"4096" doc:"show this file as it was then, relative to path"`
	MaxBytes int64  `query:"maxBytes" minimum:"0" maximum:"8388608" doc:"of the file, or of the changes of one file, at most 2097152; 524288 if it is left out"`
}

type gitShowOutput struct{ Body coding.GitShow }

type gitBlameInput struct {
	GitRef
	File  string `query:"file" maxLength:"4096" doc:"the file, relative to path; it must be given"`
	Rev   string `query:"rev" maxLength:"256" doc:"a commit; the working tree if it is left out"`
	First int    `query:"first" minimum:"0" doc:"the first line"`
	Last  int    `query:"last" minimum:"0" doc:"the last line"`
}

type gitBlameOutput struct{ Body coding.GitBlame }

func (a *API) source() {
	search := operation("searchFiles", http.MethodPost, "/v1/sandboxes/{ref}/files/search", "Files", "Search files by name, by content, or by both", ops.SandboxFind, ops.FilesList)
	huma.Register(a.huma, sometimes(search, ops.FilesExport), func(ctx context.Context, in *searchInput) (*searchOutput, error) {
		out, err := a.services.Source.Search(ctx, in.Ref, in.Body)
		return &searchOutput{out}, a.problem(ctx, err)
	})
	patch := operation("patchFiles", http.MethodPost, "/v1/sandboxes/{ref}/files/patch", "Files", "Apply a patch, all of it or nothing", ops.SandboxFind, ops.FilesRead)
	huma.Register(a.huma, sometimes(patch, ops.FilesWrite, ops.FilesRemove), func(ctx context.Context, in *patchInput) (*patchOutput, error) {
		out, err := a.services.Source.Patch(ctx, in.Ref, in.Body)
		return &patchOutput{out}, a.problem(ctx, err)
	})
	const git = "/v1/sandboxes/{ref}/git"
	huma.Register(a.huma, operation("gitStatus", http.MethodGet, git+"/status", "Git", "Show the state of a git repository", ops.SandboxFind, ops.GitRead),
		func(ctx context.Context, in *GitRef) (*gitStatusOutput, error) {
			out, err := a.services.Source.Status(ctx, in.Ref, in.Path)
			return &gitStatusOutput{out}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("gitDiff", http.MethodGet, git+"/diff", "Git", "Compare commits, the index or the working tree with its untracked files", ops.SandboxFind, ops.GitRead),
		func(ctx context.Context, in *gitDiffInput) (*gitDiffOutput, error) {
			out, err := a.services.Source.Diff(ctx, in.Ref, in.Path, coding.GitDiffOptions{Staged: in.Staged, From: in.From, To: in.To, Paths: in.Paths, Context: in.Context, MaxBytes: in.MaxBytes})
			return &gitDiffOutput{out}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("gitLog", http.MethodGet, git+"/log", "Git", "List commits, the latest first", ops.SandboxFind, ops.GitRead),
		func(ctx context.Context, in *gitLogInput) (*gitLogOutput, error) {
			out, err := a.services.Source.Log(ctx, in.Ref, in.Path, coding.GitLogOptions{Rev: in.Rev, Max: in.Max, Skip: in.Skip, Paths: in.Paths})
			return &gitLogOutput{out}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("gitShow", http.MethodGet, git+"/show", "Git", "Show a commit with its changes, or a file as it was then", ops.SandboxFind, ops.GitRead),
		func(ctx context.Context, in *gitShowInput) (*gitShowOutput, error) {
			out, err := a.services.Source.Show(ctx, in.Ref, in.Path, in.Rev, in.File, in.MaxBytes)
			return &gitShowOutput{out}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("gitBlame", http.MethodGet, git+"/blame", "Git", "Show which commits the lines of a file are from", ops.SandboxFind, ops.GitRead),
		func(ctx context.Context, in *gitBlameInput) (*gitBlameOutput, error) {
			out, err := a.services.Source.Blame(ctx, in.Ref, in.Path, in.Rev, in.File, in.First, in.Last)
			return &gitBlameOutput{out}, a.problem(ctx, err)
		})
	a.raw(sometimes(operation("watchGit", http.MethodGet, git+"/watch", "Git", "Follow the state of a git repository, as server-sent events", ops.SandboxFind, ops.GitRead), ops.FilesWatch),
		map[string]string{"path": "absolute path of a directory in the repository; the working directory of the sandbox if it is left out"}, "", "text/event-stream", a.watchGit)
}

// watchGit reports the state of a repository until the client disconnects.
func (a *API) watchGit(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	states, err := a.services.Source.Watch(ctx, r.PathValue("ref"), r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	epoch := routedBy(ctx).Epoch
	relay(a, ctx, cancel, newEvents(w), states, func(out *events, e coding.GitEvent) bool {
		e.LeaseEpoch = epoch
		return out.send("", "git.changed", e)
	})
	return nil
}
