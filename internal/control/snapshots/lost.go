package snapshots

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// findLost has the snapshots and images saved again that their archive has lost. It
// takes away the place of those that are here too, and of no others: a blob store that
// shows too little, such as another one by mistake, costs an upload and no data. It
// returns an error about the others, which may come back with the right blob store.
func (svc *Service) findLost(ctx context.Context, a store.Archive) error {
	set := archive.Set{ID: a.ID, Encrypted: a.Encrypted}
	snapshots := filed{
		list: func(tx *store.Tx) ([]store.Filed, error) { return tx.Operator().FiledSnapshots(ctx, a.ID, svc.Node) },
		here: func(id string) (bool, error) { return svc.isHere(ctx, id) },
		lose: func(tx *store.Tx, f store.Filed) error { return tx.Operator().LoseSnapshot(ctx, a.ID, f) },
	}
	images := filed{
		list: func(tx *store.Tx) ([]store.Filed, error) { return tx.Operator().FiledImages(ctx, a.ID) },
		here: func(digest string) (bool, error) {
			i, err := svc.cfg.Images.Lend(ctx, digest)
			return i != nil, err
		},
		lose: func(tx *store.Tx, f store.Filed) error { return tx.Operator().LoseImage(ctx, a.ID, f) },
	}
	err := svc.findLostIn(ctx, set, "snapshots", snapshots)
	if svc.cfg.Images == nil {
		return err
	}
	return errors.Join(err, svc.findLostIn(ctx, imagesOf(set), "images of templates", images))
}

// filed are the records of what is in a set.
type filed struct {
	list func(*store.Tx) ([]store.Filed, error)
	here func(subject string) (bool, error) // whether it can be saved again
	lose func(*store.Tx, store.Filed) error
}

func (svc *Service) findLostIn(ctx context.Context, set archive.Set, what string, f filed) error {
	// Before the set, so that newly saved ones are not missed there.
	recorded, err := store.Read(ctx, svc.Store, f.list)
	if err != nil || len(recorded) == 0 {
		return err
	}
	there, err := svc.cfg.Archive.Whole(ctx, set)
	if err != nil {
		return err
	}
	has := map[store.Filed]bool{}
	for _, k := range there {
		has[store.Filed{Subject: k.Note, Version: k.Version}] = true
	}
	var failed []error
	missing := 0
	for _, r := range recorded {
		if has[r] {
			continue
		}
		switch here, err := f.here(r.Subject); {
		case err != nil:
			failed = append(failed, err)
		case !here:
			missing++
		default:
			failed = append(failed, svc.Store.Update(ctx, func(tx *store.Tx) error { return f.lose(tx, r) }))
			svc.archive.soon()
		}
	}
	if missing > 0 {
		failed = append(failed, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "snapshot.lost", Subject: set.ID,
			Message: fmt.Sprintf("the blob store lacks %d of %d saved %s, which this machine does not have either", missing, len(recorded), what),
			Hint:    "check the address in --blobs, and restore the blob store from a backup if it lost data",
		})
	}
	return errors.Join(failed...)
}

// isHere reports whether a snapshot of this node is still on it.
func (svc *Service) isHere(ctx context.Context, id string) (bool, error) {
	s, err := svc.record(ctx, id)
	if err != nil {
		return false, err
	}
	_, keeper, err := svc.providerOf(ctx, &s)
	if err != nil {
		return false, err
	}
	_, err = keeper.FindSnapshot(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return false, nil
	}
	return err == nil, err
}
