package snapshots

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// keeper returns the snapshot keeper of a provider.
func keeper(b *providers.Backend) (driver.SnapshotKeeper, error) {
	if k, ok := driver.As[driver.SnapshotKeeper](b.Driver); ok {
		return k, nil
	}
	return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: b.Name, Message: "this provider keeps no snapshots"}
}

// KeeperOf returns the provider of a sandbox and its snapshot keeper.
func (svc *Service) KeeperOf(ctx context.Context, b *store.Sandbox) (*providers.Backend, driver.SnapshotKeeper, error) {
	be, err := svc.cfg.Providers.Of(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	keeper, err := keeper(be)
	return be, keeper, err
}

// Kept returns the snapshot with the state of a sandbox on disk.
func (svc *Service) Kept(ctx context.Context, be *providers.Backend, b *store.Sandbox) (ref driver.SnapshotRef, err error) {
	s, err := svc.record(ctx, b.Rest.Kept)
	if err != nil {
		return ref, err
	}
	return svc.locate(ctx, be, &s)
}

// providerOf returns the provider of a snapshot.
func (svc *Service) providerOf(ctx context.Context, s *store.Snapshot) (*providers.Backend, driver.SnapshotKeeper, error) {
	be, err := svc.cfg.Providers.Backend(ctx, s.Provider)
	if err != nil {
		return nil, nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: cmp.Or(s.Name, s.ID), Cause: err,
			Message: fmt.Sprintf("the provider of the snapshot, %s, cannot be used: %v", s.Provider, err),
			Hint:    "start the daemon with that provider",
		}
	}
	keeper, err := keeper(be)
	return be, keeper, err
}

// record returns the record of a snapshot of any tenant.
func (svc *Service) record(ctx context.Context, id string) (store.Snapshot, error) {
	return store.Read(ctx, svc.Store, func(tx *store.Tx) (store.Snapshot, error) { return tx.Operator().Snapshot(ctx, id) })
}

// locate returns the reference of a snapshot for a provider of this node. If
// the snapshot is not here, it returns driver.ErrSnapshotLost.
func (svc *Service) locate(ctx context.Context, be *providers.Backend, s *store.Snapshot) (ref driver.SnapshotRef, err error) {
	own := s.Provider == "" || s.Provider == be.Name
	if !own && !svc.moves(s, be.Name) {
		return ref, plan.OtherProvider(cmp.Or(s.Name, s.ID), s.Provider, be.Name)
	}
	here := own && s.Node == svc.Node
	if here && !be.Has(s.Binding) {
		return ref, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: cmp.Or(s.Name, s.ID), Cause: driver.ErrSnapshotLost,
			Message: fmt.Sprintf("the snapshot belongs to %s, but the provider %s uses %s", s.Binding, be.Name, be.Binding),
			Hint:    "start the daemon with the account and the address that the snapshot was created with",
		}
	}
	if here && s.Ref != "" {
		return ref, json.Unmarshal([]byte(s.Ref), &ref)
	}
	// It was fetched from another node, or recorded by an earlier version.
	keeper, err := keeper(be)
	if err != nil {
		return ref, err
	}
	snap, err := keeper.FindSnapshot(ctx, s.ID)
	return snap.Ref, err
}

// moves reports whether a snapshot of one node can be used on another one,
// because it is in the archive.
func (svc *Service) moves(s *store.Snapshot, provider string) bool {
	return s.Archived.Archive != "" && svc.cfg.Providers.OnNode(s.Provider) && svc.cfg.Providers.OnNode(provider)
}

// Taken returns the record fields of a new snapshot.
func Taken(snap driver.Snapshot) store.Taken {
	ref, _ := json.Marshal(snap.Ref) // only strings
	return store.Taken{Memory: snap.Ref.Kind == driver.SnapshotMemory, Engine: snap.Engine, Size: snap.Size, Ref: string(ref)}
}

// copySnapshot copies a snapshot.
func copySnapshot(ctx context.Context, keeper driver.SnapshotKeeper, ref driver.SnapshotRef, id string) (driver.Snapshot, error) {
	if c, ok := driver.As[driver.SnapshotCopier](keeper); ok {
		return c.CopySnapshot(ctx, ref, id)
	}
	e, err := exporter(keeper)
	if err != nil {
		return driver.Snapshot{}, err
	}
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(e.ExportSnapshot(ctx, ref, w)) }()
	return e.ImportSnapshot(ctx, id, r)
}

// errKept means that a provider does not give its snapshots away.
var errKept = &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider cannot export snapshots"}

func exporter(keeper driver.SnapshotKeeper) (driver.SnapshotExporter, error) {
	if e, ok := driver.As[driver.SnapshotExporter](keeper); ok {
		return e, nil
	}
	return nil, errKept
}

// Drop removes the data of a snapshot that is no longer needed. If that fails,
// Sweep removes it later.
func (svc *Service) Drop(ctx context.Context, provider, id string) {
	if id == "" {
		return
	}
	ctx = context.WithoutCancel(ctx)
	svc.Report(ctx, svc.remove(ctx, provider, id))
	svc.ForgetEnvironment(ctx, sandbox.ID(id))
}

func (svc *Service) remove(ctx context.Context, provider, id string) error {
	be, err := svc.cfg.Providers.Backend(ctx, provider)
	if err != nil {
		return err
	}
	keeper, err := keeper(be)
	if err != nil {
		return err
	}
	snap, err := keeper.FindSnapshot(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return keeper.RemoveSnapshot(ctx, snap.Ref)
}

// keptSnapshots lists the snapshots of the open providers.
func (svc *Service) keptSnapshots(ctx context.Context, each func(keptSnapshot)) error {
	var failed []error
	for _, be := range svc.cfg.Providers.Opened() {
		keeper, err := keeper(be)
		if err != nil {
			continue // it has no snapshots
		}
		for f, err := range keeper.Snapshots(ctx) {
			if err != nil {
				failed = append(failed, err)
				break
			}
			each(keptSnapshot{f, keeper, be.Name})
		}
	}
	return errors.Join(failed...)
}

// keptSnapshot is a snapshot that a provider has.
type keptSnapshot struct {
	driver.FoundSnapshot
	keeper   driver.SnapshotKeeper
	provider string // its name
}

// trimCopies removes the least recently used copies of archived snapshots until
// the rest is within the limit.
func (svc *Service) trimCopies(ctx context.Context) error {
	var copies []keptSnapshot
	total := map[string]int64{} // by provider: the limit is for each node
	err := svc.keptSnapshots(ctx, func(k keptSnapshot) {
		if svc.writing.Has(k.ID) {
			return // it was fetched for a caller that has not used it yet
		}
		if cached, err := svc.isArchived(ctx, k.ID); err == nil && cached {
			copies = append(copies, k)
			total[k.provider] += k.Size
		}
	})
	slices.SortFunc(copies, func(a, b keptSnapshot) int { return a.Used.Compare(b.Used) })
	for _, c := range copies {
		if err != nil {
			break
		}
		if total[c.provider] > svc.cfg.Cache {
			err = c.keeper.RemoveSnapshot(ctx, c.Ref)
			total[c.provider] -= c.Size
		}
	}
	return err
}

// Sweep removes unfinished snapshots, and data without a record.
func (svc *Service) Sweep(ctx context.Context) error {
	var there []keptSnapshot
	// Before the records, so that new snapshots are not included.
	err := svc.keptSnapshots(ctx, func(k keptSnapshot) { there = append(there, k) })
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for after := ""; ; {
		const batch = 500
		part, err := store.Read(ctx, svc.Store, func(tx *store.Tx) ([]store.Snapshot, error) {
			return tx.Operator().Snapshots(ctx, svc.Node, after, batch)
		})
		if err != nil {
			return err
		}
		for _, s := range part {
			if s.Ready || s.Owner != "" || svc.writing.Has(s.ID) {
				wanted[s.ID] = true
				continue
			}
			if err := svc.Store.Update(ctx, func(tx *store.Tx) error { return tx.Snapshots().Delete(ctx, s.Tenant, s.ID) }); err != nil {
				return err
			}
		}
		if len(part) < batch {
			break
		}
		after = part[len(part)-1].ID
	}
	var failed []error
	for _, f := range there {
		if wanted[f.ID] || svc.writing.Has(f.ID) {
			continue
		}
		_, err := svc.record(ctx, f.ID) // of another daemon
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = f.keeper.RemoveSnapshot(ctx, f.Ref)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
