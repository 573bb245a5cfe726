package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// WorkspaceRef names a workspace.
type WorkspaceRef struct {
	Name string `path:"name" maxLength:"63" doc:"name of the workspace"`
}

type newWorkspaceInput struct{ Body durable.NewWorkspace }

type workspaceOutput struct{ Body durable.Workspace }

type workspacesOutput struct {
	Body struct {
		Workspaces []durable.Workspace `json:"workspaces" doc:"by name"`
	}
}

type versionOutput struct{ Body durable.WorkspaceVersion }

type versionsOutput struct {
	Body struct {
		Versions []durable.WorkspaceVersion `json:"versions" doc:"oldest first"`
	}
}

type diffInput struct {
	WorkspaceRef
	From int `query:"from" minimum:"0" doc:"a version; 0 is the empty workspace"`
	To   int `query:"to" minimum:"0" doc:"a version; 0 is the newest"`
}

type diffOutput struct {
	Body struct {
		Changes []durable.WorkspaceChange `json:"changes" doc:"by path"`
		More    bool                      `json:"more,omitempty" doc:"there are more changes than are listed"`
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
		KeepLast     int   `json:"keepLast,omitempty" minimum:"0" doc:"number of newest versions to keep"`
		KeepWithinMS int64 `json:"keepWithinMs,omitempty" minimum:"0" doc:"keep all versions younger than this, in milliseconds"`
	}
}

type prunedOutput struct{ Body durable.WorkspacePruned }

type verifyInput struct {
	WorkspaceRef
	Deep bool `query:"deep" doc:"read every byte"`
}

type workspaceReportOutput struct{ Body durable.WorkspaceReport }

func (a *API) workspaces() {
	const tag = "Workspaces"
	create := operation("createWorkspace", http.MethodPost, "/v1/workspaces", tag, "Create an empty workspace", ops.WorkspaceCreate)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *newWorkspaceInput) (*workspaceOutput, error) {
		w, err := a.services.Workspaces.CreateWorkspace(ctx, in.Body)
		return &workspaceOutput{w}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listWorkspaces", http.MethodGet, "/v1/workspaces", tag, "List workspaces", ops.WorkspaceList),
		func(ctx context.Context, _ *none) (*workspacesOutput, error) {
			all, err := a.services.Workspaces.Workspaces(ctx)
			out := &workspacesOutput{}
			out.Body.Workspaces = append([]durable.Workspace{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getWorkspace", http.MethodGet, "/v1/workspaces/{name}", tag, "Get a workspace", ops.WorkspaceGet),
		func(ctx context.Context, in *WorkspaceRef) (*workspaceOutput, error) {
			w, err := a.services.Workspaces.Workspace(ctx, in.Name)
			return &workspaceOutput{w}, a.problem(ctx, err)
		})
	remove := operation("removeWorkspace", http.MethodDelete, "/v1/workspaces/{name}", tag, "Remove a workspace with all its versions", ops.WorkspaceRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *WorkspaceRef) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Workspaces.RemoveWorkspace(ctx, in.Name))
	})
	huma.Register(a.huma, operation("listVersions", http.MethodGet, "/v1/workspaces/{name}/versions", tag, "List the versions of a workspace", ops.WorkspaceHistory),
		func(ctx context.Context, in *WorkspaceRef) (*versionsOutput, error) {
			all, err := a.services.Workspaces.WorkspaceHistory(ctx, in.Name)
			out := &versionsOutput{}
			out.Body.Versions = append([]durable.WorkspaceVersion{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("diffVersions", http.MethodGet, "/v1/workspaces/{name}/diff", tag, "Compare two versions", ops.WorkspaceDiff),
		func(ctx context.Context, in *diffInput) (*diffOutput, error) {
			all, more, err := a.services.Workspaces.WorkspaceDiff(ctx, in.Name, in.From, in.To)
			out := &diffOutput{}
			out.Body.Changes, out.Body.More = append([]durable.WorkspaceChange{}, all...), more
			return out, a.problem(ctx, err)
		})
	a.workspaceActions(tag)
}

func (a *API) workspaceActions(tag string) {
	huma.Register(a.huma, operation("persistWorkspace", http.MethodPost, "/v1/workspaces/{name}/persist", tag, "Save the current content of a workspace as a new version", ops.WorkspacePersist),
		func(ctx context.Context, in *noteInput) (*versionOutput, error) {
			v, err := a.services.Workspaces.PersistWorkspace(ctx, in.Name, in.Body.Note)
			return &versionOutput{v}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("restoreVersion", http.MethodPost, "/v1/workspaces/{name}/restore", tag, "Make a new version with the content of an older one", ops.WorkspaceRestore),
		func(ctx context.Context, in *restoreInput) (*versionOutput, error) {
			v, err := a.services.Workspaces.RestoreWorkspace(ctx, in.Name, in.Body.Version, in.Body.Note)
			return &versionOutput{v}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("pruneWorkspace", http.MethodPost, "/v1/workspaces/{name}/prune", tag, "Remove versions and free their storage", ops.WorkspacePrune),
		func(ctx context.Context, in *pruneWorkspaceInput) (*prunedOutput, error) {
			done, err := a.services.Workspaces.PruneWorkspace(ctx, in.Name, in.Body.KeepLast, milliseconds(in.Body.KeepWithinMS))
			done.Versions = append([]int{}, done.Versions...)
			return &prunedOutput{done}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("verifyWorkspace", http.MethodGet, "/v1/workspaces/{name}/verify", tag, "Check that every version can be restored", ops.WorkspaceVerify),
		func(ctx context.Context, in *verifyInput) (*workspaceReportOutput, error) {
			report, err := a.services.Workspaces.VerifyWorkspace(ctx, in.Name, in.Deep)
			return &workspaceReportOutput{report}, a.problem(ctx, err)
		})
}
