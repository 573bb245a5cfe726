package daemon

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

func shownWith(b store.Sandbox, err error) (api.Sandbox, error) { return shown(b), err }

func (s service) Stop(ctx context.Context, ref string, grace time.Duration) (api.Sandbox, error) {
	return shownWith(s.Plane.Stop(ctx, ref, grace))
}

func (s service) Start(ctx context.Context, ref string) (api.Sandbox, error) {
	return shownWith(s.Plane.Start(ctx, ref))
}

func (s service) Pause(ctx context.Context, ref string, toDisk bool) (api.Sandbox, error) {
	return shownWith(s.Plane.Pause(ctx, ref, toDisk))
}

func (s service) Resume(ctx context.Context, ref string) (api.Sandbox, error) {
	return shownWith(s.Plane.Resume(ctx, ref))
}

func (s service) Update(ctx context.Context, ref string, c sandbox.Change) (api.Sandbox, error) {
	return shownWith(s.Plane.Update(ctx, ref, c))
}

func (s service) Fork(ctx context.Context, ref string, req api.ForkRequest) ([]api.Sandbox, error) {
	boxes, err := s.Plane.Fork(ctx, ref, plane.ForkRequest{Count: req.Count, Prefix: req.Prefix, Labels: req.Labels})
	out := make([]api.Sandbox, len(boxes))
	for i, b := range boxes {
		out[i] = shown(b)
	}
	return out, err
}

func shownSnapshot(s store.Snapshot) api.Snapshot {
	return api.Snapshot{
		ID: s.ID, Name: s.Name, Ready: s.Ready, Memory: s.Memory, Size: s.Size, Engine: s.Engine, Parent: string(s.Parent),
		ParentName: s.ParentName, Image: s.Image, Provider: s.Provider, Resources: s.Spec.Resources, Labels: s.Labels,
		Created: s.Created, Children: s.Children,
		Saved: s.Archived.Archive != "", Stored: s.Archived.Stored, Encrypted: s.Archived.Encrypted, Problem: s.Problem,
	}
}

func shownSnapshots(all []store.Snapshot) []api.Snapshot {
	out := make([]api.Snapshot, len(all))
	for i, s := range all {
		out[i] = shownSnapshot(s)
	}
	return out
}

func (s service) CreateSnapshot(ctx context.Context, ref string, req api.SnapshotRequest) (api.Snapshot, error) {
	made, err := s.Snapshot(ctx, ref, plane.SnapshotRequest{Name: req.Name, Memory: req.Memory, Labels: req.Labels, Save: req.Save})
	return shownSnapshot(made), err
}

func (s service) GetSnapshot(ctx context.Context, ref string) (api.Snapshot, error) {
	found, err := s.Plane.GetSnapshot(ctx, ref)
	return shownSnapshot(found), err
}

func (s service) ListSnapshots(ctx context.Context, q api.ListQuery) ([]api.Snapshot, string, error) {
	page, next, err := s.Snapshots(ctx, q.Labels, store.Page{Cursor: q.Cursor, Limit: q.Limit})
	return shownSnapshots(page), next, err
}

func (s service) PruneSnapshots(ctx context.Context, labels map[string]string) ([]api.Snapshot, error) {
	removed, err := s.Plane.PruneSnapshots(ctx, labels)
	return shownSnapshots(removed), err
}
