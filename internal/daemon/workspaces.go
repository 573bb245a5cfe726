package daemon

import (
	"context"
	"path/filepath"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
)

// openBlobs opens the store of workspaces and snapshots: for the former also the
// directories in which sandboxes see them.
func (d *Daemon) openBlobs(ctx context.Context) (*worktree.Store, *archive.Archive, error) {
	address := d.opts.Blobs
	if address == "" {
		address = "dir:" + filepath.Join(d.node.Dir(), "blobs")
	}
	blobs, err := blob.Open(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	key, err := worktree.Key(filepath.Join(d.node.Dir(), "workspace.key"))
	if err != nil {
		return nil, nil, err
	}
	workspaces, err := worktree.Open(filepath.Join(d.node.Dir(), "workspaces"), blobs, key)
	return workspaces, archive.New(blobs, key), err
}

// openBuckets opens what can be mounted.
func (d *Daemon) openBuckets() (*bucket.Buckets, error) {
	named := map[string]string{}
	for _, text := range d.opts.Buckets {
		name, address, err := bucket.ParseNamed(text, plane.DefaultTenant)
		if err != nil {
			return nil, err
		}
		named[name] = address
	}
	kernel, _ := d.opts.LookupEnv("ATOLL_KERNEL")
	b, err := bucket.Open(bucket.Options{Dir: filepath.Join(d.node.Dir(), "buckets"), Named: named, Executable: kernel})
	if err == nil {
		d.onClose(func() error { b.Close(); return nil })
	}
	return b, err
}

func (s service) CreateWorkspace(ctx context.Context, n sandbox.NewWorkspace) (sandbox.Workspace, error) {
	w, err := s.Plane.CreateWorkspace(ctx, n)
	return shownWorkspace(w), err
}

func (s service) Workspaces(ctx context.Context) ([]sandbox.Workspace, error) {
	all, err := s.Plane.Workspaces(ctx)
	return each(all, shownWorkspace), err
}

func (s service) Workspace(ctx context.Context, name string) (sandbox.Workspace, error) {
	w, err := s.Plane.Workspace(ctx, name)
	out := shownWorkspace(w)
	if w.Latest.Number > 0 {
		v := shownVersion(w.Latest)
		out.Latest = &v
	}
	return out, err
}

func (s service) WorkspaceHistory(ctx context.Context, name string) ([]sandbox.WorkspaceVersion, error) {
	all, err := s.Plane.WorkspaceHistory(ctx, name)
	return each(all, shownVersion), err
}

func (s service) WorkspaceDiff(ctx context.Context, name string, from, to int) ([]sandbox.WorkspaceChange, bool, error) {
	all, more, err := s.Plane.WorkspaceDiff(ctx, name, from, to)
	return each(all, func(c workspace.Change) sandbox.WorkspaceChange { return sandbox.WorkspaceChange(c) }), more, err
}

func (s service) PersistWorkspace(ctx context.Context, name, note string) (sandbox.WorkspaceVersion, error) {
	v, err := s.Plane.PersistWorkspace(ctx, name, note)
	return shownVersion(v), err
}

func (s service) RestoreWorkspace(ctx context.Context, name string, version int, note string) (sandbox.WorkspaceVersion, error) {
	v, err := s.Plane.RestoreWorkspace(ctx, name, version, note)
	return shownVersion(v), err
}

func (s service) PruneWorkspace(ctx context.Context, name string, last int, within time.Duration) (sandbox.WorkspacePruned, error) {
	done, err := s.Plane.PruneWorkspace(ctx, name, workspace.Keep{Last: last, Within: within})
	return sandbox.WorkspacePruned(done), err
}

func (s service) VerifyWorkspace(ctx context.Context, name string, deep bool) (sandbox.WorkspaceReport, error) {
	report, err := s.Plane.VerifyWorkspace(ctx, name, deep)
	return sandbox.WorkspaceReport(report), err
}

func shownVersion(v workspace.Version) sandbox.WorkspaceVersion { return v.WorkspaceVersion }

func shownWorkspace(w plane.Workspace) sandbox.Workspace {
	out := w.Workspace.Workspace
	out.Attached = each(w.Attached, func(a store.Attachment) sandbox.Attachment { return a.Attachment })
	return out
}
