package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// NewWorkspace asks for a workspace.
type NewWorkspace struct {
	Name      string `json:"name" minLength:"1" maxLength:"63"`
	Encrypted bool   `json:"encrypted,omitempty" doc:"encrypt what is stored with a key of the daemon"`
	MaxBytes  int64  `json:"maxBytes,omitempty" minimum:"0" doc:"bytes that one version may hold; what is over cannot be persisted"`
	Bucket    string `json:"bucket,omitempty" maxLength:"63" doc:"the workspace is this bucket of an S3 service, which the owner of the machine has named; without versions"`
}

// Workspace is a durable directory.
type Workspace struct {
	Name      string            `json:"name"`
	Encrypted bool              `json:"encrypted,omitempty"`
	MaxBytes  int64             `json:"maxBytes,omitempty"`
	Bucket    string            `json:"bucket,omitempty" doc:"the bucket that it is, if any"`
	Problem   string            `json:"problem,omitempty" doc:"what kept the last state from being persisted; it is kept where it was"`
	Created   time.Time         `json:"created"`
	Attached  []Attachment      `json:"attached" doc:"the sandboxes that have it"`
	Latest    *WorkspaceVersion `json:"latest,omitempty" doc:"the newest version; not in lists"`
}

// Attachment says which sandbox has a workspace.
type Attachment struct {
	Sandbox string    `json:"sandbox" doc:"id of the sandbox"`
	Mode    string    `json:"mode" enum:"exclusive,shared,read"`
	Since   time.Time `json:"since"`
}

// WorkspaceVersion is one state of a workspace.
type WorkspaceVersion struct {
	Number  int       `json:"number"`
	Created time.Time `json:"created"`
	Note    string    `json:"note,omitempty"`
	Files   int64     `json:"files"`
	Dirs    int64     `json:"dirs"`
	Bytes   int64     `json:"bytes" doc:"of contents, holes not counted"`
	Added   int64     `json:"added" doc:"bytes that the store grew by"`
	Skipped int64     `json:"skipped,omitempty" doc:"sockets and device nodes, which are not kept"`
}

// WorkspaceChange is one difference between two versions.
type WorkspaceChange struct {
	Path string `json:"path" doc:"below the workspace; bytes that are no UTF-8 are replaced"`
	Kind string `json:"kind" enum:"added,removed,modified,touched"`
	Size int64  `json:"size" doc:"bytes of what is there afterwards"`
	Dir  bool   `json:"dir,omitempty"`
}

// Pruned tells what was forgotten.
type Pruned struct {
	Versions []int `json:"versions"`
	Freed    int64 `json:"freed" doc:"bytes by which the store shrank"`
}

// WorkspaceReport tells what was verified.
type WorkspaceReport struct {
	Versions int   `json:"versions"`
	Chunks   int   `json:"chunks"`
	Bytes    int64 `json:"bytes" doc:"of everything that is stored"`
}

// WorkspaceRef names a workspace.
type WorkspaceRef struct {
	Name string `path:"name" maxLength:"63" doc:"name of the workspace"`
}

type newWorkspaceInput struct{ Body NewWorkspace }

type workspaceOutput struct{ Body Workspace }

type workspacesOutput struct {
	Body struct {
		Workspaces []Workspace `json:"workspaces" doc:"by name"`
	}
}

type versionOutput struct{ Body WorkspaceVersion }

type versionsOutput struct {
	Body struct {
		Versions []WorkspaceVersion `json:"versions" doc:"oldest first"`
	}
}

type diffInput struct {
	WorkspaceRef
	From int `query:"from" minimum:"0" doc:"a version; 0 is empty"`
	To   int `query:"to" minimum:"0" doc:"a version; 0 is the newest"`
}

type diffOutput struct {
	Body struct {
		Changes []WorkspaceChange `json:"changes" doc:"by path"`
		More    bool              `json:"more,omitempty" doc:"there are more than are listed"`
	}
}

type noteInput struct {
	WorkspaceRef
	Body struct {
		Note string `json:"note,omitempty" maxLength:"1000" doc:"kept with the version"`
	}
}

type restoreInput struct {
	WorkspaceRef
	Body struct {
		Version int    `json:"version" minimum:"1"`
		Note    string `json:"note,omitempty" maxLength:"1000" doc:"kept with the new version"`
	}
}

type pruneWorkspaceInput struct {
	WorkspaceRef
	Body struct {
		KeepLast     int   `json:"keepLast,omitempty" minimum:"0" doc:"so many of the newest"`
		KeepWithinMS int64 `json:"keepWithinMs,omitempty" minimum:"0" doc:"all that are younger, in milliseconds"`
	}
}

type prunedOutput struct{ Body Pruned }

type verifyInput struct {
	WorkspaceRef
	Deep bool `query:"deep" doc:"read every byte"`
}

type workspaceReportOutput struct{ Body WorkspaceReport }

func (a *API) workspaces() {
	const tag = "Workspaces"
	create := operation("createWorkspace", http.MethodPost, "/v1/workspaces", tag, "Make an empty workspace")
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *newWorkspaceInput) (*workspaceOutput, error) {
		w, err := a.service.CreateWorkspace(ctx, in.Body)
		return &workspaceOutput{w}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listWorkspaces", http.MethodGet, "/v1/workspaces", tag, "List workspaces"),
		func(ctx context.Context, _ *none) (*workspacesOutput, error) {
			all, err := a.service.Workspaces(ctx)
			out := &workspacesOutput{}
			out.Body.Workspaces = append([]Workspace{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getWorkspace", http.MethodGet, "/v1/workspaces/{name}", tag, "Look at a workspace"),
		func(ctx context.Context, in *WorkspaceRef) (*workspaceOutput, error) {
			w, err := a.service.Workspace(ctx, in.Name)
			return &workspaceOutput{w}, a.problem(ctx, err)
		})
	remove := operation("removeWorkspace", http.MethodDelete, "/v1/workspaces/{name}", tag, "Remove a workspace with all its versions")
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *WorkspaceRef) (*struct{}, error) {
		return nil, a.problem(ctx, a.service.RemoveWorkspace(ctx, in.Name))
	})
	huma.Register(a.huma, operation("listVersions", http.MethodGet, "/v1/workspaces/{name}/versions", tag, "List its versions"),
		func(ctx context.Context, in *WorkspaceRef) (*versionsOutput, error) {
			all, err := a.service.WorkspaceHistory(ctx, in.Name)
			out := &versionsOutput{}
			out.Body.Versions = append([]WorkspaceVersion{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("diffVersions", http.MethodGet, "/v1/workspaces/{name}/diff", tag, "Compare two versions"),
		func(ctx context.Context, in *diffInput) (*diffOutput, error) {
			all, more, err := a.service.WorkspaceDiff(ctx, in.Name, in.From, in.To)
			out := &diffOutput{}
			out.Body.Changes, out.Body.More = append([]WorkspaceChange{}, all...), more
			return out, a.problem(ctx, err)
		})
	a.workspaceActions(tag)
}

func (a *API) workspaceActions(tag string) {
	huma.Register(a.huma, operation("persistWorkspace", http.MethodPost, "/v1/workspaces/{name}/persist", tag, "Make a version of what it holds by now"),
		func(ctx context.Context, in *noteInput) (*versionOutput, error) {
			v, err := a.service.PersistWorkspace(ctx, in.Name, in.Body.Note)
			return &versionOutput{v}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("restoreVersion", http.MethodPost, "/v1/workspaces/{name}/restore", tag, "Make an older version the newest"),
		func(ctx context.Context, in *restoreInput) (*versionOutput, error) {
			v, err := a.service.RestoreWorkspace(ctx, in.Name, in.Body.Version, in.Body.Note)
			return &versionOutput{v}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("pruneWorkspace", http.MethodPost, "/v1/workspaces/{name}/prune", tag, "Forget versions and free what they took"),
		func(ctx context.Context, in *pruneWorkspaceInput) (*prunedOutput, error) {
			done, err := a.service.PruneWorkspace(ctx, in.Name, in.Body.KeepLast, milliseconds(in.Body.KeepWithinMS))
			done.Versions = append([]int{}, done.Versions...)
			return &prunedOutput{done}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("verifyWorkspace", http.MethodGet, "/v1/workspaces/{name}/verify", tag, "Make sure that every version can be restored"),
		func(ctx context.Context, in *verifyInput) (*workspaceReportOutput, error) {
			report, err := a.service.VerifyWorkspace(ctx, in.Name, in.Deep)
			return &workspaceReportOutput{report}, a.problem(ctx, err)
		})
}
