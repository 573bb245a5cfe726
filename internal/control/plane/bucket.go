package plane

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
)

// Buckets mounts buckets on this machine, each for the id of one workspace; see
// package bucket.
type Buckets interface {
	// Known says why a bucket, TENANT/NAME, cannot be mounted here, if so.
	Known(name string) error
	// Mount returns where it is mounted for id.
	Mount(ctx context.Context, id, name string) (dir string, err error)
	// Settle waits until the bucket has what was written to the mount of id.
	Settle(ctx context.Context, id string) error
	// Unmount ends the mount of id.
	Unmount(id string) error
	// Sweep settles and ends the mounts that are not wanted.
	Sweep(ctx context.Context, wanted func(id string) bool) error
}

// checkBucket refuses a workspace of a bucket that its tenant does not have here,
// or with properties that a bucket cannot have.
func (p *Plane) checkBucket(row store.Workspace) error {
	if row.Bucket == "" {
		return nil
	}
	if row.Encrypted || row.MaxBytes > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "bucket", Message: "a bucket is neither encrypted nor limited by Atoll",
			Hint: "leave that out, or make a workspace that is no bucket",
		}
	}
	if err := sandbox.ValidateName(row.Bucket); err != nil {
		return err
	}
	if p.cfg.Buckets == nil {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "bucket", Message: "this daemon mounts no buckets"}
	}
	return p.cfg.Buckets.Known(bucketName(row))
}

// bucketName is what the daemon calls the bucket of a workspace: tenants do not
// share names.
func bucketName(row store.Workspace) string { return row.Tenant + "/" + row.Bucket }

// onBucket is onWorkspace for a bucket, which can be looked at and has no
// versions to do anything with.
func (p *Plane) onBucket(ctx context.Context, op ops.Op, row store.Workspace, do func(context.Context, store.Workspace, *workspace.Workspace) error) error {
	if op != ops.WorkspaceGet {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: row.Name, Message: "the workspace is a bucket, of which Atoll keeps no versions",
			Hint: "use it in a sandbox, or what its service has for that",
		}
	}
	return do(ctx, row, nil)
}

// bucketMounts mounts a bucket and returns what to show of it.
func (p *Plane) bucketMounts(ctx context.Context, row store.Workspace, ref *sandbox.WorkspaceMount) ([]sandbox.Mount, error) {
	if err := p.checkBucket(row); err != nil {
		return nil, err
	}
	dir, err := p.cfg.Buckets.Mount(ctx, row.ID, bucketName(row))
	if err != nil {
		return nil, err
	}
	if ref.Mode == sandbox.WorkspaceRead {
		return []sandbox.Mount{{Source: dir, Target: ref.Target(), ReadOnly: true}}, nil
	}
	if err := core.FirstError(worktree.Subdirs(dir, ref.Writable, true), worktree.Subdirs(dir, ref.ReadOnly, false)); err != nil {
		return nil, err
	}
	return mountsOf(dir, ref), nil
}

// settleBucket waits until the bucket has what a sandbox that ended wrote. If it
// does not take that, the workspace stays attached, and the next reconciliation
// tries again.
func (p *Plane) settleBucket(ctx context.Context, a store.Attachment, row store.Workspace) error {
	if p.cfg.Buckets == nil || a.Mode == sandbox.WorkspaceRead {
		return nil
	}
	err := p.cfg.Buckets.Settle(ctx, row.ID)
	problem := ""
	if err != nil {
		p.unsettled.Store(true)
		problem = err.Error()
	}
	if problem != row.Problem {
		row.Problem = problem
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
		defer cancel()
		p.Report(ctx, p.Store.Update(late, func(tx *store.Tx) error { return tx.SetWorkspace(late, row) }))
	}
	return err
}

func (p *Plane) unmountBucket(row store.Workspace) error {
	if p.cfg.Buckets == nil {
		return nil
	}
	return p.cfg.Buckets.Unmount(row.ID)
}

// sweepTimeout bounds what a daemon that starts waits for buckets that somebody
// who was killed has left mounted.
const sweepTimeout = 30 * time.Second

// SweepBuckets unmounts the buckets that no sandbox of this node has. It is
// called once, before anybody is served.
func (p *Plane) SweepBuckets(ctx context.Context) error {
	if p.cfg.Buckets == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	var failed error
	wanted := func(id string) bool {
		all, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments(ctx, id) })
		if err != nil {
			failed = err
			return true
		}
		for _, a := range all {
			if a.Node == p.Node {
				return true
			}
		}
		return false
	}
	return core.FirstError(p.cfg.Buckets.Sweep(ctx, wanted), failed)
}
