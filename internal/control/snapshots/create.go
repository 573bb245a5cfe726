package snapshots

import (
	"cmp"
	"context"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// CreateSnapshot takes a named snapshot of a sandbox. A running sandbox
// continues to run; for a sandbox on disk, its saved state is copied. The
// snapshot can be used on this node immediately, and on others when it has been
// saved to the blob store.
func (svc *Service) CreateSnapshot(ctx context.Context, ref string, req durable.SnapshotRequest) (durable.Snapshot, error) {
	s, err := svc.createAndSave(ctx, ref, req)
	return s.Snapshot, core.Named(opCreate, err)
}

func (svc *Service) createAndSave(ctx context.Context, ref string, req durable.SnapshotRequest) (store.Snapshot, error) {
	if req.Save && svc.cfg.Archive == nil {
		return store.Snapshot{}, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this daemon has no blob store"}
	}
	s, err := svc.createLocked(ctx, ref, req)
	defer svc.archive.soon()
	if err != nil || !req.Save {
		return s, err
	}
	if err := svc.save(ctx, s.ID); err != nil {
		return s, err
	}
	return svc.Find(ctx, s.Tenant, s.ID)
}

func (svc *Service) createLocked(ctx context.Context, ref string, req durable.SnapshotRequest) (store.Snapshot, error) {
	l, err := svc.cfg.Sandboxes.LockForSnapshot(ctx, ref)
	if err != nil {
		return store.Snapshot{}, err
	}
	defer l.Release()
	return svc.create(ctx, l, req)
}

func (svc *Service) create(ctx context.Context, l *Locked, req durable.SnapshotRequest) (store.Snapshot, error) {
	if l.Sandbox.Spec.ID == "" {
		return store.Snapshot{}, CannotKeep(&l.Sandbox)
	}
	id := NewID()
	s := Describe(&l.Sandbox, store.Snapshot{Snapshot: durable.Snapshot{ID: id, Name: cmp.Or(req.Name, id), Memory: req.Memory, Labels: req.Labels}})
	defer svc.writing.Begin(id)()
	return svc.write(ctx, l.Sandbox.Tenant, s, l.Action, func() (driver.Snapshot, error) {
		snap, err := svc.take(ctx, l, id, req.Memory)
		if err == nil {
			err = svc.keepEnvironment(&l.Sandbox, id)
		}
		return snap, err
	})
}

// take makes the provider write a snapshot.
func (svc *Service) take(ctx context.Context, l *Locked, id string, memory bool) (snap driver.Snapshot, err error) {
	if kept := l.Sandbox.Rest.Kept; kept != "" {
		return svc.copyKept(ctx, l, id, memory)
	}
	sb, err := svc.cfg.Sandboxes.Attach(ctx, &l.Sandbox)
	if err != nil {
		return snap, err
	}
	return sb.Snapshot(ctx, driver.SnapshotOptions{ID: id, Memory: memory})
}

// copyKept copies the saved state of a sandbox on disk to a snapshot.
func (svc *Service) copyKept(ctx context.Context, l *Locked, id string, memory bool) (snap driver.Snapshot, err error) {
	kept, err := svc.record(ctx, l.Sandbox.Rest.Kept)
	if err != nil {
		return snap, err
	}
	if kept.Memory != memory {
		what := map[bool]string{true: "with memory", false: "without memory"}[kept.Memory]
		return snap, &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: l.Sandbox.Name, Message: "the sandbox's saved state is " + what,
			Hint: "resume or start the sandbox first, or make a snapshot " + what,
		}
	}
	be, keeper, err := svc.KeeperOf(ctx, &l.Sandbox)
	if err != nil {
		return snap, err
	}
	ref, err := svc.locate(ctx, be, &kept)
	if err != nil {
		return snap, err
	}
	if snap, err = copySnapshot(ctx, keeper, ref, id); err != nil {
		return snap, err
	}
	snap.Engine = cmp.Or(snap.Engine, kept.Engine)
	return snap, nil
}
