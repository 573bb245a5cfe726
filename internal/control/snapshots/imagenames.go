package snapshots

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// The names of imported images belong to the owner of the machines: there is one set of
// them for each database. Commands import and remove them in the image store, without a
// daemon. Each import and each removal is a change with an identity. The daemon records
// a change of its machine in the database, over what is there, and takes over the
// changes of other machines: removals in the background, images when they are needed.
//
// A change of this machine is first marked as following the recorded one, then
// recorded if that is still the same, then marked as agreed. So after a crash the
// daemon knows whether another change came later, which wins.

// removedNames is how long the database knows that a name was removed. A machine that
// is away for longer brings the name back.
const removedNames = 90 * 24 * time.Hour

func (svc *Service) namesStamp() string {
	if svc.cfg.Images == nil {
		return ""
	}
	return svc.cfg.Images.NamesStamp()
}

// agreeAll records the changed names of this machine, and takes over what was changed
// elsewhere. With expire, it also forgets old removals.
func (svc *Service) agreeAll(ctx context.Context, expire bool) error {
	if svc.cfg.Images == nil {
		return nil
	}
	names, err := svc.cfg.Images.Names("")
	if err != nil {
		return err
	}
	rows, err := store.Read(ctx, svc.Store, func(tx *store.Tx) ([]store.ImageName, error) { return tx.Operator().ImageNames(ctx) })
	if err != nil {
		return err
	}
	known := map[[2]string]string{}
	for _, r := range rows {
		known[[2]string{r.Name, r.Platform}] = r.Change
	}
	var failed []error
	for _, n := range names {
		if !n.New && n.Change != "" && n.Change == n.Agreed && known[[2]string{n.Name, n.Platform}] == n.Change {
			continue
		}
		failed = append(failed, svc.agree(ctx, n, false))
	}
	if expire {
		failed = append(failed, svc.Store.Update(ctx, func(tx *store.Tx) error {
			return tx.Operator().ForgetImageNames(ctx, svc.Store.Now().Add(-removedNames))
		}))
	}
	return errors.Join(failed...)
}

// agree makes this machine and the database agree about a name. With fetch, its image
// is fetched if it is missing.
func (svc *Service) agree(ctx context.Context, n ImageName, fetch bool) error {
	row, err := svc.imageName(ctx, n)
	if err != nil {
		return err
	}
	mark := n
	switch {
	case n.New:
		mark.New, mark.Agreed = false, row.Change
	case n.Change == "" && n.Own && row.Change == "": // of an earlier version
		mark.Change = rand.Text()
	case n.Change != "" && row.Change == "": // of another database, or forgotten
		mark.Agreed = ""
	}
	if n.New && row.Change == "" && n.Agreed == "" && n.Digest != "" && !n.Own {
		return nil // a registry's image, which is of this machine alone
	}
	if mark != n {
		if done, err := svc.cfg.Images.SetName(ctx, n, mark); !done || err != nil {
			return err // it was changed: the next look at it is soon
		}
		if err := svc.Fault("imagename.marked"); err != nil {
			return err
		}
	}
	n = mark
	if n.Change != "" && n.Change != n.Agreed && row.Change == n.Agreed {
		if row, err = svc.recordName(ctx, n); err != nil {
			return err
		}
	}
	switch {
	case row.Change == "":
		return nil
	case row.Change == n.Change:
		return svc.agreed(ctx, n, fetch)
	}
	return svc.follow(ctx, n, row, fetch)
}

// imageName returns what the database knows of a name. A name that it does not know has
// no change.
func (svc *Service) imageName(ctx context.Context, n ImageName) (store.ImageName, error) {
	row, err := store.Read(ctx, svc.Store, func(tx *store.Tx) (store.ImageName, error) {
		return tx.Templates().ImageName(ctx, n.Name, n.Platform)
	})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return store.ImageName{}, nil
	}
	return row, err
}

// recordName records a change of this machine, and returns what is recorded then: if
// another change came first, that one.
func (svc *Service) recordName(ctx context.Context, n ImageName) (store.ImageName, error) {
	row := store.ImageName{Name: n.Name, Platform: n.Platform, Tenant: key.DefaultTenant, Change: n.Change}
	if n.Own { // else it was removed, or means an image of a registry
		row.Image = n.Digest
	}
	err := svc.Store.Update(ctx, func(tx *store.Tx) error {
		if _, err := tx.Tenants().Ensure(ctx, row.Tenant); err != nil {
			return err
		}
		return tx.Templates().SetImageName(ctx, row, n.Agreed)
	})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return svc.imageName(ctx, n)
	}
	if err != nil {
		return row, err
	}
	svc.TemplatesChanged(row.Tenant)
	return row, svc.Fault("imagename.recorded")
}

// agreed marks a change as recorded.
func (svc *Service) agreed(ctx context.Context, n ImageName, fetch bool) error {
	to := n
	if to.Agreed = n.Change; n.Digest == "" {
		to = ImageName{Name: n.Name, Platform: n.Platform}
	}
	if to != n {
		_, err := svc.cfg.Images.SetName(ctx, n, to)
		return err
	}
	if fetch && n.Own {
		return ofImage(n.Name, svc.fetchImage(ctx, key.DefaultTenant, n.Digest)) // if a part of it is lost
	}
	return nil
}

// follow takes over a change of another machine.
func (svc *Service) follow(ctx context.Context, n ImageName, row store.ImageName, fetch bool) error {
	to := ImageName{Name: n.Name, Platform: n.Platform}
	if row.Image == "" {
		if n.Change == "" {
			return nil // it was pulled, or nobody has asked to remove it
		}
		_, err := svc.cfg.Images.SetName(ctx, n, to)
		return err
	}
	if fetch {
		if err := svc.fetchImage(ctx, row.Tenant, row.Image); err != nil {
			return ofImage(n.Name, err)
		}
	}
	there, err := svc.cfg.Images.Has(row.Image)
	switch {
	case err != nil:
		return err
	case there:
		to.Digest, to.Own, to.Change, to.Agreed = row.Image, true, row.Change, row.Change
	case fetch && n.Digest == "":
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "image.get", Subject: n.Name, Message: "the image was imported on another machine, which has not saved it yet",
			Hint: "try again soon; if that machine is lost, import the image again",
		}
	case n.Digest != "":
		return nil // until its new image is needed and saved
	}
	if to == n {
		return nil
	}
	_, err = svc.cfg.Images.SetName(ctx, n, to)
	return core.FirstError(err, svc.Fault("imagename.followed"))
}
