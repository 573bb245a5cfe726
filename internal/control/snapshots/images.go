package snapshots

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// The images of templates are saved, too: by the daemon that built them, each once for
// each tenant that has templates of it. So are those that the owner of the machine has
// imported; see imagenames.go. Other daemons get them when they need them.

// Images are the images on this machine. It must be safe for concurrent use.
type Images interface {
	// Has reports whether the machine has an image, by its digest.
	Has(digest string) (bool, error)
	// Lend returns an image by its digest. Nil: the machine does not have it, or it
	// is of no use elsewhere.
	Lend(ctx context.Context, digest string) (LentImage, error)
	// Accept stores an image under a digest. lent is LentImage.Digest, and r reads
	// what LentImage.Write wrote. Other content is CodeInvalid.
	Accept(ctx context.Context, digest, lent string, r io.Reader) error
	// Names returns the names that the owner of the machine gave to images of files,
	// and those that were removed. With ref, it returns what the machine has of that
	// one, or nothing if ref is no name of an image.
	Names(ref string) ([]ImageName, error)
	// SetName replaces a name that Names returned by another state of it. It reports
	// whether it did that: not if the name was changed meanwhile, or its new image is
	// not here.
	SetName(ctx context.Context, old, to ImageName) (bool, error)
	// NamesStamp returns a value that changes when names change.
	NamesStamp() string
}

// ImageName is a name of an image on this machine; see image.NameState.
type ImageName struct {
	Name, Platform string
	Digest         string // empty: the name was removed, or was never here
	Own            bool   // the image is of files
	Change, Agreed string
	New            bool
}

// LentImage is an image that can be stored elsewhere.
type LentImage interface {
	Digest() string // of its content
	Write(ctx context.Context, w io.Writer) error
}

// imagesOf returns the set with the images of a tenant. It is not that of the
// snapshots: daemons of earlier versions would remove them there.
func imagesOf(a archive.Set) archive.Set {
	a.ID += "-images"
	return a
}

// TemplatesChanged saves new images of a tenant's templates soon, and removes the
// saved ones that no template has.
func (svc *Service) TemplatesChanged(tenant string) {
	svc.archive.mu.Lock()
	defer svc.archive.mu.Unlock()
	svc.archive.dirty[tenant] = true
	svc.archive.soon()
}

// saveImages saves the images of templates and imported names that this machine has and that are not in
// the blob store.
func (svc *Service) saveImages(ctx context.Context) error {
	if svc.cfg.Images == nil {
		return nil
	}
	const batch = 100
	var failed []error
	for after := (store.TemplateImage{}); ; {
		part, err := store.Read(ctx, svc.Store, func(tx *store.Tx) ([]store.TemplateImage, error) {
			return tx.Operator().UnsavedImages(ctx, after, batch)
		})
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		for _, i := range part {
			id := i.Tenant + "\n" + i.Image
			if svc.archive.isBroken(id, false) {
				continue
			}
			err := svc.saveImage(ctx, i)
			svc.archive.isBroken(id, sandbox.CodeOf(err) == sandbox.CodeInvalid || sandbox.CodeOf(err) == sandbox.CodeUnsupported)
			failed = append(failed, err)
		}
		if len(part) < batch || ctx.Err() != nil {
			return errors.Join(failed...)
		}
		after = part[len(part)-1]
	}
}

// saveImage saves an image, if this machine has it, and records that. It succeeds if
// the last template or name of it is removed meanwhile, or another daemon saves it.
func (svc *Service) saveImage(ctx context.Context, i store.TemplateImage) error {
	img, err := svc.cfg.Images.Lend(ctx, i.Image)
	if img == nil || err != nil {
		return err
	}
	set, err := svc.archiveOf(ctx, i.Tenant)
	if err != nil {
		return err
	}
	at, _, err := svc.cfg.Archive.Write(ctx, imagesOf(set), i.Image, svc.transfers(), func(w io.Writer) error { return img.Write(ctx, w) })
	if err != nil {
		return ofImage(i.Image, err)
	}
	if err := svc.Fault("saveimage.stored"); err != nil {
		return err
	}
	i.Lent = img.Digest()
	i.Archived = store.Archived{Archive: set.ID, Encrypted: set.Encrypted, Version: at.Version, Digest: at.Digest, Stored: at.Stored}
	err = svc.Store.Update(ctx, func(tx *store.Tx) error { return tx.Templates().SaveImage(ctx, i) })
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeAlreadyExists {
		svc.TemplatesChanged(i.Tenant)
		return nil
	}
	return err
}

// FetchImage gets an image from the blob store if this machine lacks it: by its digest,
// if it is that of a template which the tenant may use, or by a name that was imported
// on this machine or another one. It does nothing if it is not there; only looking for
// the image says that it is missing.
func (svc *Service) FetchImage(ctx context.Context, tenant, ref string) error {
	if svc.cfg.Images == nil || svc.cfg.Archive == nil {
		return nil
	}
	if strings.HasPrefix(ref, "sha256:") {
		return svc.fetchImage(ctx, tenant, ref)
	}
	names, err := svc.cfg.Images.Names(ref)
	if err != nil || len(names) == 0 {
		return err
	}
	return svc.agree(ctx, names[0], true)
}

func (svc *Service) fetchImage(ctx context.Context, tenant, digest string) error {
	if there, err := svc.cfg.Images.Has(digest); there || err != nil {
		return err
	}
	saved, err := store.Read(ctx, svc.Store, func(tx *store.Tx) (store.TemplateImage, error) {
		return tx.Templates().SavedImage(ctx, tenant, digest)
	})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	release, err := svc.archive.locks.Take(ctx, digest)
	if err != nil {
		return err
	}
	defer release()
	if there, err := svc.cfg.Images.Has(digest); there || err != nil {
		return err // another caller fetched it
	}
	at := saved.Archived
	set, place := archive.Set{ID: at.Archive, Encrypted: at.Encrypted}, archive.Place{Version: at.Version, Digest: at.Digest}
	err = svc.cfg.Archive.Read(ctx, imagesOf(set), place, svc.transfers(), func(r io.Reader) error {
		return svc.cfg.Images.Accept(ctx, digest, saved.Lent, r)
	})
	return core.FirstError(ofImage(digest, err), svc.Fault("fetchimage.stored"))
}

// ofImage makes an error of an archive one about an image.
func ofImage(digest string, err error) error {
	var known *sandbox.Error
	if !errors.As(err, &known) {
		return err
	}
	own := *known
	own.Op, own.Subject, own.Cause = "image.get", digest, err
	own.Message = strings.Replace(own.Message, "the snapshot", "the saved image", 1)
	if own.Code == sandbox.CodeInvalid {
		own.Hint = "build the template, or import the image, again"
	}
	return &own
}

// sweepImages removes the saved images of a tenant that no template and no name has and, with
// rubbish, also the remains of killed daemons.
func (svc *Service) sweepImages(ctx context.Context, a store.Archive, rubbish bool) error {
	set := imagesOf(archive.Set{ID: a.ID, Encrypted: a.Encrypted})
	there, err := svc.cfg.Archive.List(ctx, set) // before the records, so that newly saved images are not removed
	if err != nil || len(there) == 0 && !rubbish {
		return err
	}
	var unwanted []int
	err = svc.Store.View(ctx, func(tx *store.Tx) error {
		unwanted = nil
		for _, k := range there {
			i, err := tx.Operator().TemplateImage(ctx, a.Tenant, k.Note)
			if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
				return err
			}
			// While an image is being saved, it is not recorded yet.
			at := i.Archived
			if err != nil || at.Archive != "" && (at.Archive != a.ID || at.Version != k.Version) {
				unwanted = append(unwanted, k.Version)
			}
		}
		return nil
	})
	if err != nil || len(unwanted) == 0 && !rubbish {
		return err
	}
	return svc.cfg.Archive.Sweep(ctx, set, unwanted)
}
