package plane

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/sandbox"
)

// Workspace is what is known of a workspace.
type Workspace struct {
	store.Workspace
	Attached []store.Attachment
	Latest   workspace.Version // not known in a list
}

// errNoWorkspaces is what all operations say on a daemon without a store for workspaces.
func (p *Plane) shelved() error {
	if p.cfg.Workspaces != nil {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "workspace", Message: "this daemon keeps no workspaces"}
}

// onWorkspace does something to a workspace of the caller's tenant, while
// nobody else does.
func (p *Plane) onWorkspace(ctx context.Context, op ops.Op, name string, do func(context.Context, store.Workspace, *workspace.Workspace) error) error {
	if err := sandbox.ValidateName(name); err != nil {
		return core.Named(op, err)
	}
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return core.Named(op, p.Act(ctx, control.Action{Op: op, Subject: name}, func(ctx context.Context) error {
		if err := p.shelved(); err != nil {
			return err
		}
		row, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Workspace, error) { return tx.Workspace(ctx, who.Tenant, name) })
		if err != nil {
			return err
		}
		if row.Removing {
			return &sandbox.Error{Code: sandbox.CodeConflict, Subject: name, Message: "the workspace is being removed", Hint: "remove it again to finish that"}
		}
		if row.Bucket != "" {
			return p.onBucket(ctx, op, row, do)
		}
		return p.withWorkspace(ctx, row, func(w *workspace.Workspace) error { return do(ctx, row, w) })
	}))
}

// withWorkspace opens a workspace and keeps others of this daemon from it. One
// that is a bucket has no versions, and is nil.
func (p *Plane) withWorkspace(ctx context.Context, row store.Workspace, do func(*workspace.Workspace) error) error {
	release, err := p.workspaces.Take(ctx, row.ID)
	if err != nil {
		return err
	}
	defer release()
	if row.Bucket != "" {
		return do(nil)
	}
	w, err := p.cfg.Workspaces.Open(ctx, row.ID, row.Encrypted)
	if err != nil {
		return err
	}
	return do(w)
}

// CreateWorkspace makes an empty workspace.
func (p *Plane) CreateWorkspace(ctx context.Context, n sandbox.NewWorkspace) (Workspace, error) {
	const op = ops.WorkspaceCreate
	who, err := guard.Principal(ctx)
	if err != nil {
		return Workspace{}, err
	}
	if err := sandbox.ValidateName(n.Name); err != nil {
		return Workspace{}, core.Named(op, err)
	}
	if n.MaxBytes < 0 {
		return Workspace{}, &sandbox.Error{Code: sandbox.CodeInvalid, Op: string(op), Subject: "maxBytes", Message: "negative"}
	}
	row := store.Workspace{Workspace: sandbox.Workspace{Name: n.Name, Encrypted: n.Encrypted, MaxBytes: n.MaxBytes, Bucket: n.Bucket}, ID: "ws-" + strings.ToLower(rand.Text()[:16]), Tenant: who.Tenant}
	err = p.Act(ctx, control.Action{Op: op, Subject: n.Name}, func(ctx context.Context) error {
		if err := p.shelved(); err != nil {
			return err
		}
		if err := p.checkBucket(row); err != nil {
			return err
		}
		if err := p.Store.Update(ctx, func(tx *store.Tx) error { return tx.AddWorkspace(ctx, row) }); err != nil {
			return err
		}
		if row.Bucket != "" {
			// There is nothing to make.
		} else if err := p.cfg.Workspaces.Create(ctx, row.ID, row.Encrypted); err != nil {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
			defer cancel()
			p.Report(ctx, p.Store.Update(late, func(tx *store.Tx) error { return tx.RemoveWorkspace(late, row.ID) }))
			return err
		}
		row, err = store.Read(ctx, p.Store, func(tx *store.Tx) (store.Workspace, error) { return tx.Workspace(ctx, who.Tenant, n.Name) })
		return err
	})
	return Workspace{Workspace: row}, core.Named(op, err)
}

// Workspaces lists the workspaces of the caller's tenant by name.
func (p *Plane) Workspaces(ctx context.Context) (all []Workspace, err error) {
	who, err := p.Look(ctx, ops.WorkspaceList, "")
	if err != nil {
		return nil, err
	}
	err = p.Store.View(ctx, func(tx *store.Tx) error {
		all = nil
		rows, err := tx.Workspaces(ctx, who.Tenant)
		if err != nil {
			return err
		}
		for _, row := range rows {
			attached, err := tx.Attachments(ctx, row.ID)
			if err != nil {
				return err
			}
			all = append(all, Workspace{Workspace: row, Attached: attached})
		}
		return nil
	})
	return all, core.Named(ops.WorkspaceList, err)
}

// Workspace returns what is known of a workspace of the caller's tenant.
func (p *Plane) Workspace(ctx context.Context, name string) (out Workspace, err error) {
	err = p.onWorkspace(ctx, ops.WorkspaceGet, name, func(ctx context.Context, row store.Workspace, w *workspace.Workspace) error {
		out.Workspace = row
		if out.Attached, err = p.attachments(ctx, row); err != nil {
			return err
		}
		if w != nil {
			out.Latest, err = w.Latest(ctx)
		}
		return err
	})
	return out, err
}

func (p *Plane) attachments(ctx context.Context, row store.Workspace) ([]store.Attachment, error) {
	return store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments(ctx, row.ID) })
}

// WorkspaceHistory returns the versions of a workspace, oldest first.
func (p *Plane) WorkspaceHistory(ctx context.Context, name string) (all []workspace.Version, err error) {
	err = p.onWorkspace(ctx, ops.WorkspaceHistory, name, func(ctx context.Context, _ store.Workspace, w *workspace.Workspace) error {
		all, err = w.History(ctx)
		return err
	})
	return all, err
}

// WorkspaceDiff returns what changed between two versions; see
// workspace.Workspace.Diff.
func (p *Plane) WorkspaceDiff(ctx context.Context, name string, from, to int) (changes []workspace.Change, more bool, err error) {
	err = p.onWorkspace(ctx, ops.WorkspaceDiff, name, func(ctx context.Context, _ store.Workspace, w *workspace.Workspace) error {
		changes, more, err = w.Diff(ctx, from, to)
		return err
	})
	return changes, more, err
}

// PersistWorkspace makes a version of what the exclusive sandbox has in its
// workspace by now.
func (p *Plane) PersistWorkspace(ctx context.Context, name, note string) (v workspace.Version, err error) {
	err = p.onWorkspace(ctx, ops.WorkspacePersist, name, func(ctx context.Context, row store.Workspace, w *workspace.Workspace) error {
		attached, err := p.attachments(ctx, row)
		if err != nil {
			return err
		}
		inUse := false
		for _, a := range attached {
			if a.Mode == sandbox.WorkspaceRead {
				continue
			}
			if inUse = true; a.Node != p.Node {
				return &sandbox.Error{
					Code: sandbox.CodeUnavailable, Subject: name, Message: "the workspace is in use on the node " + a.Node, Hint: "ask the daemon of that node",
				}
			}
		}
		v, err = p.persist(ctx, row, w, note, !inUse)
		return err
	})
	return v, err
}

// persist writes a version and down what came of it. The caller holds the lock
// of the workspace.
func (p *Plane) persist(ctx context.Context, row store.Workspace, w *workspace.Workspace, note string, rest bool) (workspace.Version, error) {
	opts := workspace.PersistOptions{Note: note, Limits: workspace.Limits{Bytes: row.MaxBytes}}
	v, err := p.cfg.Workspaces.Persist(ctx, w, opts, rest)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != row.Problem {
		row.Problem = problem
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
		defer cancel()
		p.Report(ctx, p.Store.Update(late, func(tx *store.Tx) error { return tx.SetWorkspace(late, row) }))
	}
	return v, err
}

// RestoreWorkspace makes an older version the newest. No sandbox may be
// changing the workspace.
func (p *Plane) RestoreWorkspace(ctx context.Context, name string, version int, note string) (v workspace.Version, err error) {
	err = p.onWorkspace(ctx, ops.WorkspaceRestore, name, func(ctx context.Context, row store.Workspace, w *workspace.Workspace) error {
		attached, err := p.attachments(ctx, row)
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
		v, err = w.Revert(ctx, version, note)
		return err
	})
	return v, err
}

// PruneWorkspace forgets versions of a workspace and frees what they took.
func (p *Plane) PruneWorkspace(ctx context.Context, name string, keep workspace.Keep) (done workspace.Pruned, err error) {
	err = p.onWorkspace(ctx, ops.WorkspacePrune, name, func(ctx context.Context, _ store.Workspace, w *workspace.Workspace) error {
		done, err = w.Prune(ctx, keep)
		return err
	})
	return done, err
}

// VerifyWorkspace makes sure that every version can be restored.
func (p *Plane) VerifyWorkspace(ctx context.Context, name string, deep bool) (report workspace.Report, err error) {
	err = p.onWorkspace(ctx, ops.WorkspaceVerify, name, func(ctx context.Context, _ store.Workspace, w *workspace.Workspace) error {
		report, err = w.Verify(ctx, deep)
		return err
	})
	return report, err
}

// RemoveWorkspace removes a workspace with all its versions. It must not be
// attached. What is in a bucket stays there.
func (p *Plane) RemoveWorkspace(ctx context.Context, name string) error {
	const op = ops.WorkspaceRemove
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return core.Named(op, p.Act(ctx, control.Action{Op: op, Subject: name}, func(ctx context.Context) error {
		if err := p.shelved(); err != nil {
			return err
		}
		row, err := store.Write(ctx, p.Store, func(tx *store.Tx) (store.Workspace, error) {
			row, err := tx.LockWorkspace(ctx, who.Tenant, name)
			if err != nil {
				return row, err
			}
			attached, err := tx.Attachments(ctx, row.ID)
			if err == nil && len(attached) > 0 {
				err = &sandbox.Error{
					Code: sandbox.CodeConflict, Subject: name, Message: "the workspace is attached to the sandbox " + string(attached[0].Sandbox),
					Hint: "remove that sandbox first",
				}
			}
			if err != nil {
				return row, err
			}
			row.Removing = true
			return row, tx.SetWorkspace(ctx, row)
		})
		if err != nil {
			return err
		}
		release, err := p.workspaces.Take(ctx, row.ID)
		if err != nil {
			return err
		}
		defer release()
		if row.Bucket != "" {
			err = p.unmountBucket(row)
		} else {
			err = p.cfg.Workspaces.Remove(ctx, row.ID)
		}
		if err != nil {
			return err
		}
		return p.Store.Update(ctx, func(tx *store.Tx) error { return tx.RemoveWorkspace(ctx, row.ID) })
	}))
}
