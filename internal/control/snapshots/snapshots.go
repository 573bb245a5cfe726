package snapshots

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

const (
	opCreate = ops.SnapshotCreate
	opRemove = ops.SnapshotRemove
	opGet    = ops.SnapshotGet
	opList   = ops.SnapshotList
)

// GetSnapshot returns a snapshot of the caller's tenant, by name or id.
func (svc *Service) GetSnapshot(ctx context.Context, ref string) (durable.Snapshot, error) {
	who, err := svc.Look(ctx, opGet, ref)
	if err != nil {
		return durable.Snapshot{}, err
	}
	s, err := svc.Find(ctx, who.Tenant, ref)
	return s.Snapshot, core.Named(opGet, err)
}

// ListSnapshots returns a page of the snapshots of the caller's tenant, newest
// first. The states of the query are ignored.
func (svc *Service) ListSnapshots(ctx context.Context, q sandbox.ListQuery) (all []durable.Snapshot, next string, err error) {
	page, err := core.Read(ctx, svc.Core, opList, "", func(tx *store.Tx, tenant string) (page []store.Snapshot, err error) {
		page, next, err = tx.Snapshots().List(ctx, tenant, q.Labels, store.Page{Cursor: q.Cursor, Limit: q.Limit})
		return page, err
	})
	all = make([]durable.Snapshot, len(page))
	for i, s := range page {
		all[i] = s.Snapshot
	}
	return all, next, err
}

// Find returns a snapshot of a tenant, by name or id.
func (svc *Service) Find(ctx context.Context, tenant, ref string) (store.Snapshot, error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return store.Snapshot{}, err
	}
	s, err := store.Read(ctx, svc.Store, func(tx *store.Tx) (store.Snapshot, error) { return tx.Snapshots().Get(ctx, tenant, ref) })
	if e := new(sandbox.Error); errors.As(err, &e) && e.Code == sandbox.CodeNotFound {
		e.Hint = "list the snapshots with: atoll snapshot ls"
	}
	return s, err
}

// RemoveSnapshot removes a snapshot. Sandboxes created from it are not
// affected. It returns CodeNotFound if there is no such snapshot.
func (svc *Service) RemoveSnapshot(ctx context.Context, ref string) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return svc.Do(ctx, opRemove, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		s, err := svc.Find(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		return svc.Remove(ctx, &s)
	})
}

// Remove removes the record of a snapshot, then its data. If it is interrupted,
// Sweep removes the data.
func (svc *Service) Remove(ctx context.Context, s *store.Snapshot) error {
	if svc.writing.Has(s.ID) {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: s.Name, Message: "the snapshot is being written", Hint: "try again"}
	}
	if err := svc.Store.Update(ctx, func(tx *store.Tx) error { return tx.Snapshots().Delete(ctx, s.Tenant, s.ID) }); err != nil {
		return err
	}
	svc.archive.forget(s.ID, s.Tenant)
	if err := svc.Fault("snapshot.forgotten"); err != nil {
		return err
	}
	svc.ForgetEnvironment(ctx, sandbox.ID(s.ID))
	if _, err := svc.cfg.Providers.Backend(ctx, s.Provider); err != nil {
		return nil //nolint:nilerr // the data is swept when that provider is available again
	}
	err := svc.remove(ctx, s.Provider, s.ID)
	if s.Archived.Archive != "" && svc.cfg.Providers.OnNode(s.Provider) {
		svc.removeCopies(ctx, s)
		if sandbox.CodeOf(err) == sandbox.CodeUnavailable { // swept when the node is back
			svc.Report(ctx, err)
			err = nil
		}
	}
	return err
}

// removeCopies removes the copies of a snapshot of one node from the others. One
// that cannot be removed now is swept later.
func (svc *Service) removeCopies(ctx context.Context, s *store.Snapshot) {
	var g errgroup.Group
	g.SetLimit(nodesAtOnce)
	for _, be := range svc.cfg.Providers.Opened() {
		if be.Name != s.Provider && svc.cfg.Providers.OnNode(be.Name) {
			g.Go(func() error {
				svc.Report(ctx, svc.remove(ctx, be.Name, s.ID))
				return nil
			})
		}
	}
	_ = g.Wait() // all are tried
}

// nodesAtOnce is the number of nodes that are asked to remove copies at once.
const nodesAtOnce = 16

// PruneSnapshots removes the tenant's snapshots with all of the labels, except
// those from which existing sandboxes were created, and returns them.
func (svc *Service) PruneSnapshots(ctx context.Context, labels map[string]string) (removed []durable.Snapshot, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return nil, err
	}
	err = svc.Do(ctx, opRemove, guard.Subject{Subject: "*"}, func(ctx context.Context) error {
		removed = []durable.Snapshot{}
		var used map[string]bool
		all, err := store.Read(ctx, svc.Store, func(tx *store.Tx) (all []store.Snapshot, err error) {
			if used, err = tx.Templates().Snapshots(ctx, who.Tenant); err != nil {
				return nil, err
			}
			all, _, err = tx.Snapshots().List(ctx, who.Tenant, labels, store.Page{Limit: store.MaxPage})
			return all, err
		})
		if err != nil {
			return err
		}
		for _, s := range all {
			if s.Children > 0 || !s.Ready || used[s.ID] || s.Labels[durable.ArchiveLabel] != "" {
				continue
			}
			if err := svc.Remove(ctx, &s); err != nil {
				return err
			}
			removed = append(removed, s.Snapshot)
		}
		return nil
	})
	return removed, err
}

// Source returns a snapshot of a tenant, by name or id, from which a sandbox can
// be made here.
func (svc *Service) Source(ctx context.Context, tenant, ref string) (*plan.Snapshot, error) {
	s, err := svc.Find(ctx, tenant, ref)
	switch {
	case err != nil:
		return nil, err
	case !s.Ready:
		return nil, beingCreated(&s)
	case s.Node != svc.Node && s.Archived.Archive == "":
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: s.Name, Message: "the snapshot is on another machine, which has not saved it yet",
			Hint: "try again when it is saved; see: atoll snapshot inspect " + s.Name,
		}
	}
	out := &plan.Snapshot{ID: s.ID, Name: s.Name, Provider: s.Provider, Spec: s.Spec}
	out.Moves = func(provider string) bool { return svc.moves(&s, provider) }
	out.Away = out.Moves(s.Provider) && !svc.cfg.Providers.Accepts(s.Provider)
	if len(s.Spec.Env) > 0 && svc.cfg.Environments != nil {
		out.Env, err = svc.cfg.Environments.Get(sandbox.ID(s.ID))
	}
	return out, err
}

func beingCreated(s *store.Snapshot) error {
	return &sandbox.Error{Code: sandbox.CodeConflict, Subject: s.Name, Message: "the snapshot is being created", Hint: "try again"}
}
