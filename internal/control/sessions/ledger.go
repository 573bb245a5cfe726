package sessions

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// register records an archive in the ledger before a lease names it, so that an
// archive that no lease names is deleted.
func (s *archives) register(ctx context.Context, tenant, group string, a durable.Archive) error {
	return s.Store.Update(ctx, func(tx *store.Tx) error { return tx.Sessions().RegisterArchive(ctx, tenant, group, a) })
}

// publish marks the archive that an operation put into a lease as current in
// the ledger, in the same transaction.
func publish(ctx context.Context, tx *store.Tx, tenant, group string, op lease.Op) error {
	var data json.RawMessage
	switch o := op.(type) {
	case lease.Persist:
		data = o.Archive
	case lease.Save:
		data = o.Archive
	}
	if data == nil {
		return nil
	}
	e, err := durable.ParseEnvelope(data)
	if err != nil || e.Archive == nil {
		return err
	}
	return tx.Sessions().PublishArchive(ctx, tenant, group, e.Archive.Ref)
}

// tidy deletes the archives of a group that are marked for deletion.
func (s *archives) tidy(ctx context.Context, tenant, group string) error {
	all, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.KeptArchive, error) { return tx.Sessions().Archives(ctx, tenant, group) })
	failed := []error{err}
	for _, k := range all {
		if k.State == store.ArchiveDeletePending {
			failed = append(failed, s.deleteArchive(ctx, k))
		}
	}
	return errors.Join(failed...)
}

// retire marks all archives of a group for deletion, in the transaction that
// forgets its lease. Before that transaction a session may join the group and
// need them; after it none can be published. named is the archive of the lease,
// which is not in the ledger if an earlier version made it; it may be nil.
func retire(ctx context.Context, tx *store.Tx, tenant, group string, named *durable.Archive) error {
	if named != nil {
		if err := tx.Sessions().RegisterArchive(ctx, tenant, group, *named); err != nil {
			return err
		}
	}
	all, err := tx.Sessions().Archives(ctx, tenant, group)
	for _, k := range all {
		if err == nil {
			_, err = tx.Sessions().RetireArchive(ctx, tenant, k.Archive.Ref, true)
		}
	}
	return err
}

// named returns the archive that a lease names, nil if it names none that this
// daemon can read.
func (s *archives) named(ctx context.Context, tenant string, l lease.Lease) *durable.Archive {
	if l.Archive == nil {
		return nil
	}
	e, err := durable.ParseEnvelope(l.Archive)
	if err != nil || e.Archive == nil || s.readable(ctx, tenant, *e.Archive) != nil {
		return nil
	}
	return e.Archive
}

// deleteArchive removes an archive that is marked for deletion, unless another
// call is removing it or a session still needs it.
func (s *archives) deleteArchive(ctx context.Context, k store.KeptArchive) error {
	mine, err := store.Write(ctx, s.Store, func(tx *store.Tx) (bool, error) { return tx.Sessions().DeleteArchive(ctx, k.Tenant, k.Archive.Ref) })
	if err != nil || !mine {
		return err
	}
	removed := s.remove(ctx, k.Tenant, k.Archive)
	err = s.Store.Update(ctx, func(tx *store.Tx) error {
		return tx.Sessions().ArchiveDeleted(ctx, k.Tenant, k.Archive.Ref, removed != nil)
	})
	return errors.Join(removed, err)
}

// archivesAtOnce is how many archives one sweep deletes.
const archivesAtOnce = 32

// sweepArchives deletes the archives of all tenants that are marked for deletion.
func (s *archives) sweepArchives(ctx context.Context) error {
	all, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.KeptArchive, error) {
		return tx.Operator().DueArchives(ctx, archivesAtOnce)
	})
	failed := []error{err}
	for _, k := range all {
		ctx := guard.WithOwner(ctx, k.Tenant)
		failed = append(failed, s.deleteArchive(ctx, k))
	}
	return errors.Join(failed...)
}
