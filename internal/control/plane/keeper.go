package plane

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Providers keep the bytes of snapshots. The control plane keeps their
// references, gives every provider only its own, and decides what is removed.

// keeper returns what keeps the snapshots of a provider.
func keeper(b *providers.Backend) (driver.SnapshotKeeper, error) {
	if k, ok := driver.As[driver.SnapshotKeeper](b.Driver); ok {
		return k, nil
	}
	return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: b.Name, Message: "this provider keeps no snapshots"}
}

// keeperOf returns the provider of a sandbox and what keeps its snapshots.
func (p *Plane) keeperOf(ctx context.Context, b *store.Sandbox) (*providers.Backend, driver.SnapshotKeeper, error) {
	be, err := p.Providers.Of(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	keeper, err := keeper(be)
	return be, keeper, err
}

// providerOf returns the provider that keeps a snapshot.
func (p *Plane) providerOf(ctx context.Context, s *store.Snapshot) (*providers.Backend, driver.SnapshotKeeper, error) {
	be, err := p.Providers.Backend(ctx, s.Provider)
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

// snapshotRecord returns what is recorded of a snapshot of any tenant.
func (p *Plane) snapshotRecord(ctx context.Context, id string) (store.Snapshot, error) {
	return store.Read(ctx, p.Store, func(tx *store.Tx) (store.Snapshot, error) { return tx.Operator().Snapshot(ctx, id) })
}

// locate returns the reference of a snapshot that a provider of this node keeps.
// One that is not here is driver.ErrSnapshotLost.
func (p *Plane) locate(ctx context.Context, be *providers.Backend, s *store.Snapshot) (ref driver.SnapshotRef, err error) {
	if s.Provider != "" && s.Provider != be.Name {
		return ref, otherProvider(s, be.Name)
	}
	here := s.Node == p.Node
	if here && s.Binding != "" && s.Binding != be.Binding {
		return ref, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: cmp.Or(s.Name, s.ID), Cause: driver.ErrSnapshotLost,
			Message: fmt.Sprintf("the snapshot belongs to %s, and the provider %s works on %s", s.Binding, be.Name, be.Binding),
			Hint:    "start the daemon with the account and the address that the snapshot was made with",
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

func otherProvider(s *store.Snapshot, asked string) error {
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Subject: cmp.Or(s.Name, s.ID), Message: fmt.Sprintf("the snapshot was made by provider %s, and not by %s", s.Provider, asked),
		Hint: "leave the provider out",
	}
}

// taken is a snapshot as it is recorded.
func taken(snap driver.Snapshot) store.Taken {
	ref, _ := json.Marshal(snap.Ref) // only strings
	return store.Taken{Memory: snap.Ref.Kind == driver.SnapshotMemory, Engine: snap.Engine, Size: snap.Size, Ref: string(ref)}
}

// copySnapshot makes another snapshot of the same bytes.
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

func exporter(keeper driver.SnapshotKeeper) (driver.SnapshotExporter, error) {
	if e, ok := driver.As[driver.SnapshotExporter](keeper); ok {
		return e, nil
	}
	return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider cannot export snapshots"}
}

// drop removes the bytes of a snapshot of a provider that nobody wants any more.
// If that fails, reconciliation finds them.
func (p *Plane) drop(ctx context.Context, provider, id string) {
	if id == "" {
		return
	}
	ctx = context.WithoutCancel(ctx)
	p.Report(ctx, p.dropNow(ctx, provider, id))
	p.forgetEnvironment(ctx, sandbox.ID(id))
}

func (p *Plane) dropNow(ctx context.Context, provider, id string) error {
	be, err := p.Providers.Backend(ctx, provider)
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

// keptSnapshots lists what the open providers keep.
func (p *Plane) keptSnapshots(ctx context.Context, each func(driver.SnapshotKeeper, driver.FoundSnapshot)) error {
	var failed []error
	for _, be := range p.Providers.Opened() {
		keeper, err := keeper(be)
		if err != nil {
			continue // it keeps none
		}
		for f, err := range keeper.Snapshots(ctx) {
			if err != nil {
				failed = append(failed, err)
				break
			}
			each(keeper, f)
		}
	}
	return errors.Join(failed...)
}

// keptSnapshot is what a provider keeps.
type keptSnapshot struct {
	driver.FoundSnapshot
	keeper driver.SnapshotKeeper
}

// trimCopies keeps what could be fetched again within its bound: what was not
// used for longest goes first.
func (p *Plane) trimCopies(ctx context.Context) error {
	var copies []keptSnapshot
	var total int64
	err := p.keptSnapshots(ctx, func(k driver.SnapshotKeeper, f driver.FoundSnapshot) {
		if p.writing.Has(f.ID) {
			return // it was fetched for somebody who does not use it yet
		}
		if cached, err := p.isArchived(ctx, f.ID); err == nil && cached {
			copies = append(copies, keptSnapshot{f, k})
			total += f.Size
		}
	})
	slices.SortFunc(copies, func(a, b keptSnapshot) int { return a.Used.Compare(b.Used) })
	for _, c := range copies {
		if err != nil || total <= p.cfg.SnapshotCache {
			break
		}
		err = c.keeper.RemoveSnapshot(ctx, c.Ref)
		total -= c.Size
	}
	return core.FirstError(err, p.Fault("trim.done"))
}
