package daemon

import (
	"context"
	"path/filepath"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
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

func (s service) CreateWorkspace(ctx context.Context, n api.NewWorkspace) (api.Workspace, error) {
	w, err := s.Plane.CreateWorkspace(ctx, plane.NewWorkspace(n))
	return shownWorkspace(w), err
}

func (s service) Workspaces(ctx context.Context) ([]api.Workspace, error) {
	all, err := s.Plane.Workspaces(ctx)
	out := make([]api.Workspace, len(all))
	for i, w := range all {
		out[i] = shownWorkspace(w)
	}
	return out, err
}

func (s service) Workspace(ctx context.Context, name string) (api.Workspace, error) {
	w, err := s.Plane.Workspace(ctx, name)
	out := shownWorkspace(w)
	if w.Latest.Number > 0 {
		v := shownVersion(w.Latest)
		out.Latest = &v
	}
	return out, err
}

func (s service) WorkspaceHistory(ctx context.Context, name string) ([]api.WorkspaceVersion, error) {
	all, err := s.Plane.WorkspaceHistory(ctx, name)
	out := make([]api.WorkspaceVersion, len(all))
	for i, v := range all {
		out[i] = shownVersion(v)
	}
	return out, err
}

func (s service) WorkspaceDiff(ctx context.Context, name string, from, to int) ([]api.WorkspaceChange, bool, error) {
	all, more, err := s.Plane.WorkspaceDiff(ctx, name, from, to)
	out := make([]api.WorkspaceChange, len(all))
	for i, c := range all {
		out[i] = api.WorkspaceChange(c)
	}
	return out, more, err
}

func (s service) PersistWorkspace(ctx context.Context, name, note string) (api.WorkspaceVersion, error) {
	v, err := s.Plane.PersistWorkspace(ctx, name, note)
	return shownVersion(v), err
}

func (s service) RestoreWorkspace(ctx context.Context, name string, version int, note string) (api.WorkspaceVersion, error) {
	v, err := s.Plane.RestoreWorkspace(ctx, name, version, note)
	return shownVersion(v), err
}

func (s service) PruneWorkspace(ctx context.Context, name string, last int, within time.Duration) (api.Pruned, error) {
	done, err := s.Plane.PruneWorkspace(ctx, name, workspace.Keep{Last: last, Within: within})
	return api.Pruned(done), err
}

func (s service) VerifyWorkspace(ctx context.Context, name string, deep bool) (api.WorkspaceReport, error) {
	report, err := s.Plane.VerifyWorkspace(ctx, name, deep)
	return api.WorkspaceReport(report), err
}

func shownVersion(v workspace.Version) api.WorkspaceVersion {
	return api.WorkspaceVersion{
		Number: v.Number, Created: v.Created, Note: v.Note, Files: v.Files, Dirs: v.Dirs, Bytes: v.Bytes, Added: v.Added, Skipped: v.Skipped,
	}
}

func shownWorkspace(w plane.Workspace) api.Workspace {
	out := api.Workspace{
		Name: w.Name, Encrypted: w.Encrypted, MaxBytes: w.MaxBytes, Bucket: w.Bucket, Problem: w.Problem, Created: w.Created, Attached: []api.Attachment{},
	}
	for _, a := range w.Attached {
		out.Attached = append(out.Attached, api.Attachment{Sandbox: string(a.Sandbox), Mode: string(a.Mode), Since: a.Created})
	}
	return out
}
