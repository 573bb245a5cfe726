package workspaces

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

// Buckets mounts buckets on this machine. Each mount has the id of a workspace;
// see package bucket.
type Buckets interface {
	// Known returns an error if a bucket, TENANT/NAME, cannot be mounted here.
	Known(name string) error
	// Mount mounts a bucket for id and returns the directory.
	Mount(ctx context.Context, id, name string) (dir string, err error)
	// Flush waits until the bucket has all writes to the mount of id.
	Flush(ctx context.Context, id string) error
	// Unmount removes the mount of id.
	Unmount(id string) error
	// Sweep flushes and removes mounts that are not wanted.
	Sweep(ctx context.Context, wanted func(id string) bool) error
}

// checkBucket returns an error if the tenant does not have the bucket on this
// machine, or if the workspace has properties that buckets do not support.
func (s *Service) checkBucket(row store.Workspace) error {
	if row.Bucket == "" {
		return nil
	}
	if row.Encrypted || row.MaxBytes > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "bucket", Message: "a bucket is neither encrypted nor limited by Atoll",
			Hint: "leave that out, or create a workspace that is not a bucket",
		}
	}
	if err := sandbox.ValidateName(row.Bucket); err != nil {
		return err
	}
	if s.buckets == nil {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "bucket", Message: "this daemon cannot mount buckets"}
	}
	return s.buckets.Known(bucketName(row))
}

// bucketName returns the daemon's name of a bucket. Each tenant has its own
// names.
func bucketName(row store.Workspace) string { return row.Tenant + "/" + row.Bucket }

// onBucket is onWorkspace for a bucket, which can be described but has no
// versions.
func (s *Service) onBucket(ctx context.Context, op ops.Op, row store.Workspace, do func(context.Context, store.Workspace, *workspace.Workspace) error) error {
	if op != ops.WorkspaceGet {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: row.Name, Message: "the workspace is a bucket, and Atoll keeps no versions of buckets",
			Hint: "use it in a sandbox, or the versioning of its service",
		}
	}
	return do(ctx, row, nil)
}

// bucketMounts mounts a bucket and returns its mounts in the sandbox.
func (s *Service) bucketMounts(ctx context.Context, row store.Workspace, ref *sandbox.WorkspaceMount) ([]sandbox.Mount, error) {
	if err := s.checkBucket(row); err != nil {
		return nil, err
	}
	dir, err := s.buckets.Mount(ctx, row.ID, bucketName(row))
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

// flushBucket waits until the bucket has all writes of a sandbox that ended. If
// that fails, the workspace stays attached until the next reconciliation.
func (s *Service) flushBucket(ctx context.Context, a store.Attachment, row store.Workspace) error {
	if s.buckets == nil || a.Mode == sandbox.WorkspaceRead {
		return nil
	}
	err := s.buckets.Flush(ctx, row.ID)
	problem := ""
	if err != nil {
		s.sandboxes.RecheckSoon()
		problem = err.Error()
	}
	if problem != row.Problem {
		row.Problem = problem
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
		defer cancel()
		s.Report(ctx, s.Store.Update(late, func(tx *store.Tx) error { return tx.Workspaces().Set(late, row) }))
	}
	return err
}

func (s *Service) unmountBucket(row store.Workspace) error {
	if s.buckets == nil {
		return nil
	}
	return s.buckets.Unmount(row.ID)
}

// sweepTimeout limits the time that a starting daemon waits for buckets that a
// killed daemon left mounted.
const sweepTimeout = 30 * time.Second

// SweepBuckets unmounts the buckets that no sandbox of this node uses. It is
// called once, before the first request.
func (s *Service) SweepBuckets(ctx context.Context) error {
	if s.buckets == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	var failed error
	wanted := func(id string) bool {
		all, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Workspaces().Attachments(ctx, id) })
		if err != nil {
			failed = err
			return true
		}
		for _, a := range all {
			if a.Node == s.Node {
				return true
			}
		}
		return false
	}
	return core.FirstError(s.buckets.Sweep(ctx, wanted), failed)
}
