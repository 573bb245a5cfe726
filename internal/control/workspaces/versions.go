package workspaces

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// WorkspaceHistory returns the versions of a workspace, oldest first.
func (s *Service) WorkspaceHistory(ctx context.Context, name string) (all []durable.WorkspaceVersion, err error) {
	err = s.onWorkspace(ctx, ops.WorkspaceHistory, name, func(ctx context.Context, _ store.Workspace, w *workspace.Workspace) error {
		versions, err := w.History(ctx)
		all = make([]durable.WorkspaceVersion, len(versions))
		for i, v := range versions {
			all[i] = v.WorkspaceVersion
		}
		return err
	})
	return all, err
}

// WorkspaceDiff returns what changed between two versions; see
// workspace.Workspace.Diff.
func (s *Service) WorkspaceDiff(ctx context.Context, name string, from, to int) (changes []durable.WorkspaceChange, more bool, err error) {
	err = s.onWorkspace(ctx, ops.WorkspaceDiff, name, func(ctx context.Context, _ store.Workspace, w *workspace.Workspace) error {
		found, rest, err := w.Diff(ctx, from, to)
		changes, more = make([]durable.WorkspaceChange, len(found)), rest
		for i, c := range found {
			changes[i] = durable.WorkspaceChange(c)
		}
		return err
	})
	return changes, more, err
}

// PersistWorkspace creates a version of the current content of a workspace. A
// sandbox that writes to it must run on this node.
func (s *Service) PersistWorkspace(ctx context.Context, name, note string) (v durable.WorkspaceVersion, err error) {
	err = s.onWorkspace(ctx, ops.WorkspacePersist, name, func(ctx context.Context, row store.Workspace, w *workspace.Workspace) error {
		attached, err := s.attachments(ctx, row)
		if err != nil {
			return err
		}
		inUse := false
		for _, a := range attached {
			if a.Mode == sandbox.WorkspaceRead {
				continue
			}
			if inUse = true; a.Node != s.Node {
				return &sandbox.Error{
					Code: sandbox.CodeUnavailable, Subject: name, Message: "the workspace is in use on the node " + a.Node, Hint: "send the request to the daemon of that node",
				}
			}
		}
		if err := s.fetchLast(ctx, attached, row); err != nil {
			return err
		}
		v, err = s.persist(ctx, row, w, note, !inUse)
		return err
	})
	return v, err
}

// persist writes a version and records the problem if that fails. The caller holds
// the lock of the workspace.
func (s *Service) persist(ctx context.Context, row store.Workspace, w *workspace.Workspace, note string, rest bool) (durable.WorkspaceVersion, error) {
	opts := workspace.PersistOptions{Note: note, Limits: workspace.Limits{Bytes: row.MaxBytes}}
	v, err := s.trees.Persist(ctx, w, opts, rest)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != row.Problem {
		row.Problem = problem
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
		defer cancel()
		s.Report(ctx, s.Store.Update(late, func(tx *store.Tx) error { return tx.Workspaces().Set(late, row) }))
	}
	return v.WorkspaceVersion, err
}

// RestoreWorkspace makes an older version the newest one. No sandbox may be
// writing to the workspace.
func (s *Service) RestoreWorkspace(ctx context.Context, name string, version int, note string) (v durable.WorkspaceVersion, err error) {
	err = s.onWorkspace(ctx, ops.WorkspaceRestore, name, func(ctx context.Context, row store.Workspace, w *workspace.Workspace) error {
		attached, err := s.attachments(ctx, row)
		if err != nil {
			return err
		}
		for _, a := range attached {
			if a.Mode != sandbox.WorkspaceRead {
				return &sandbox.Error{
					Code: sandbox.CodeConflict, Subject: name, Message: "the workspace is attached to the sandbox " + string(a.Sandbox),
					Hint: "remove that sandbox first",
				}
			}
		}
		restored, err := w.Revert(ctx, version, note)
		v = restored.WorkspaceVersion
		return err
	})
	return v, err
}

// PruneWorkspace removes the versions of a workspace, except the last ones and
// those younger than within, and frees their storage.
func (s *Service) PruneWorkspace(ctx context.Context, name string, last int, within time.Duration) (done durable.WorkspacePruned, err error) {
	err = s.onWorkspace(ctx, ops.WorkspacePrune, name, func(ctx context.Context, _ store.Workspace, w *workspace.Workspace) error {
		pruned, err := w.Prune(ctx, workspace.Keep{Last: last, Within: within})
		done = durable.WorkspacePruned(pruned)
		return err
	})
	return done, err
}

// VerifyWorkspace checks that every version can be restored; with deep it reads
// all content.
func (s *Service) VerifyWorkspace(ctx context.Context, name string, deep bool) (report durable.WorkspaceReport, err error) {
	err = s.onWorkspace(ctx, ops.WorkspaceVerify, name, func(ctx context.Context, _ store.Workspace, w *workspace.Workspace) error {
		found, err := w.Verify(ctx, deep)
		report = durable.WorkspaceReport(found)
		return err
	})
	return report, err
}
