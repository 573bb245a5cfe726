package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

type pauseInput struct {
	SandboxRef
	Body struct {
		ToDisk bool `json:"toDisk,omitempty" doc:"pause on disk, without memory and processes; otherwise the processes are frozen in memory"`
	}
}

type stopInput struct {
	SandboxRef
	Body struct {
		GraceMS int64 `json:"graceMs,omitempty" minimum:"0" maximum:"600000" doc:"how long commands may take to end after SIGTERM, in milliseconds"`
	}
}

type updateInput struct {
	SandboxRef
	Body sandbox.Change
}

type forkInput struct {
	SandboxRef
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"240" doc:"a repeated request with the same key returns the copies that the first request made"`
	Body           durable.ForkRequest
	RawBody        []byte
}

type forkOutput struct {
	Body struct {
		Sandboxes []sandbox.Sandbox `json:"sandboxes"`
	}
}

// answer is the sandbox after an operation.
func (a *API) answer(ctx context.Context) func(sandbox.Sandbox, error) (*sandboxOutput, error) {
	return func(s sandbox.Sandbox, err error) (*sandboxOutput, error) {
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		return &sandboxOutput{Status: http.StatusOK, Body: s}, nil
	}
}

// lifecycle registers the operations that change the state of a sandbox.
func (a *API) lifecycle() {
	const base = "/v1/sandboxes/{ref}"
	huma.Register(a.huma, operation("pauseSandbox", http.MethodPost, base+"/pause", "Sandboxes", "Pause a sandbox in memory or on disk", ops.SandboxPause),
		func(ctx context.Context, in *pauseInput) (*sandboxOutput, error) {
			return a.answer(ctx)(a.services.Sandboxes.Pause(ctx, in.Ref, in.Body.ToDisk))
		})
	resume := operation("resumeSandbox", http.MethodPost, base+"/resume", "Sandboxes", "Resume a paused sandbox", ops.SandboxResume)
	resume.Errors = append(resume.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, resume, func(ctx context.Context, in *SandboxRef) (*sandboxOutput, error) {
		return a.answer(ctx)(a.services.Sandboxes.Resume(ctx, in.Ref))
	})
	huma.Register(a.huma, operation("stopSandbox", http.MethodPost, base+"/stop", "Sandboxes", "Stop a sandbox; its commands get SIGTERM and a grace period, and its files are kept if the provider can do that, as the state in the response says", ops.SandboxStop),
		func(ctx context.Context, in *stopInput) (*sandboxOutput, error) {
			return a.answer(ctx)(a.services.Sandboxes.Stop(ctx, in.Ref, milliseconds(in.Body.GraceMS)))
		})
	start := operation("startSandbox", http.MethodPost, base+"/start", "Sandboxes", "Start a stopped sandbox with its files", ops.SandboxStart)
	start.Errors = append(start.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, start, func(ctx context.Context, in *SandboxRef) (*sandboxOutput, error) {
		return a.answer(ctx)(a.services.Sandboxes.Start(ctx, in.Ref))
	})
	update := operation("updateSandbox", http.MethodPatch, base, "Sandboxes", "Change limits, labels, lifetime or idle policy of a sandbox", ops.SandboxUpdate)
	update.Errors = append(update.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, update, func(ctx context.Context, in *updateInput) (*sandboxOutput, error) {
		return a.answer(ctx)(a.services.Sandboxes.Update(ctx, in.Ref, in.Body))
	})
	fork := operation("forkSandbox", http.MethodPost, base+"/fork", "Sandboxes", "Make copies of a sandbox; on an error, there are no copies", ops.SandboxFork)
	fork.DefaultStatus = http.StatusCreated
	fork.Errors = append(fork.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, fork, func(ctx context.Context, in *forkInput) (*forkOutput, error) {
		req := in.Body
		req.IdempotencyKey, req.Raw = in.IdempotencyKey, in.RawBody
		sandboxes, err := a.services.Sandboxes.Fork(ctx, in.Ref, req)
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		out := &forkOutput{}
		out.Body.Sandboxes = sandboxes
		return out, nil
	})
}

// SnapshotRef names a snapshot in a path.
type SnapshotRef struct {
	Snapshot string `path:"snapshot" maxLength:"63" doc:"id or name of the snapshot"`
}

type snapshotInput struct {
	SandboxRef
	Body durable.SnapshotRequest
}

type snapshotOutput struct{ Body durable.Snapshot }

type snapshotListInput struct {
	Label  []string `query:"label,explode" maxItems:"64" doc:"only those with this label, KEY=VALUE; with several, those that have all of them"`
	Cursor string   `query:"cursor" maxLength:"256" doc:"cursor that was returned with the page before"`
	Limit  int      `query:"limit" minimum:"0" maximum:"1000" doc:"maximum number of snapshots"`
}

type snapshotListOutput struct {
	Body struct {
		Snapshots []durable.Snapshot `json:"snapshots"`
		Next      string             `json:"next,omitempty" doc:"the cursor of the next page; empty at the end"`
	}
}

type pruneInput struct {
	Body struct {
		Labels map[string]string `json:"labels,omitempty" doc:"only snapshots with all of these labels"`
	}
}

// snapshots registers the operations on snapshots.
func (a *API) snapshots() {
	create := operation("createSnapshot", http.MethodPost, "/v1/sandboxes/{ref}/snapshots", "Snapshots", "Take a snapshot of a sandbox, which continues", ops.SnapshotCreate)
	create.DefaultStatus = http.StatusCreated
	create.Errors = append(create.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, create, func(ctx context.Context, in *snapshotInput) (*snapshotOutput, error) {
		s, err := a.services.Snapshots.CreateSnapshot(ctx, in.Ref, in.Body)
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		return &snapshotOutput{s}, nil
	})
	huma.Register(a.huma, operation("listSnapshots", http.MethodGet, "/v1/snapshots", "Snapshots", "List snapshots, newest first", ops.SnapshotList), a.listSnapshots)
	huma.Register(a.huma, operation("getSnapshot", http.MethodGet, "/v1/snapshots/{snapshot}", "Snapshots", "Get a snapshot", ops.SnapshotGet),
		func(ctx context.Context, in *SnapshotRef) (*snapshotOutput, error) {
			s, err := a.services.Snapshots.GetSnapshot(ctx, in.Snapshot)
			if err != nil {
				return nil, a.problem(ctx, err)
			}
			return &snapshotOutput{s}, nil
		})
	remove := operation("removeSnapshot", http.MethodDelete, "/v1/snapshots/{snapshot}", "Snapshots", "Remove a snapshot; sandboxes made from it are not affected", ops.SnapshotRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *SnapshotRef) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Snapshots.RemoveSnapshot(ctx, in.Snapshot))
	})
	huma.Register(a.huma, operation("pruneSnapshots", http.MethodPost, "/v1/snapshots/prune", "Snapshots", "Remove the snapshots from which no existing sandbox was made", ops.SnapshotRemove),
		func(ctx context.Context, in *pruneInput) (*snapshotListOutput, error) {
			removed, err := a.services.Snapshots.PruneSnapshots(ctx, in.Body.Labels)
			if err != nil {
				return nil, a.problem(ctx, err)
			}
			out := &snapshotListOutput{}
			out.Body.Snapshots = append([]durable.Snapshot{}, removed...)
			return out, nil
		})
	a.raw(operation("exportSnapshot", http.MethodGet, "/v1/snapshots/{snapshot}/archive", "Snapshots", "Export a snapshot as a tar stream, which only another daemon with the same provider reads", ops.SnapshotGet, ops.SnapshotExport),
		nil, "", "application/x-tar", a.exportSnapshot)
	a.raw(operation("importSnapshot", http.MethodPut, "/v1/snapshots/{snapshot}/archive", "Snapshots", "Store a snapshot that another daemon exported, under a new name; only for keys of the tenant default, because its memory is trusted", ops.SnapshotImport),
		map[string]string{"label": "a label, KEY=VALUE; may be repeated"}, "application/x-tar", "application/json", a.importSnapshot)
}

func (a *API) exportSnapshot(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/x-tar")
	out := &begun{w: flusher{w, http.NewResponseController(w)}}
	err := a.services.Snapshots.ExportSnapshot(r.Context(), r.PathValue("snapshot"), out)
	return a.cutShort(r.Context(), out, err)
}

func (a *API) importSnapshot(w http.ResponseWriter, r *http.Request) error {
	given, err := labels(r.URL.Query()["label"])
	if err != nil {
		return err
	}
	s, err := a.services.Snapshots.ImportSnapshot(r.Context(), r.PathValue("snapshot"), given, r.Body)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, s)
}

func (a *API) listSnapshots(ctx context.Context, in *snapshotListInput) (*snapshotListOutput, error) {
	wanted, err := labels(in.Label)
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	page, next, err := a.services.Snapshots.ListSnapshots(ctx, sandbox.ListQuery{Labels: wanted, Cursor: in.Cursor, Limit: in.Limit})
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	out := &snapshotListOutput{}
	out.Body.Snapshots, out.Body.Next = append([]durable.Snapshot{}, page...), next
	return out, nil
}
