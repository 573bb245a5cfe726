package daemon

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
)

// acceptImage stores an image that another daemon sends.
func (d *Daemon) acceptImage(ctx context.Context, digest string, r io.Reader) error {
	images, err := d.node.Images()
	if err == nil {
		_, err = images.Accept(ctx, digest, r)
	}
	return err
}

// lentImages are the images that only this machine has, and that nodes get from
// it: those of templates, of files and of registries that want the login of the
// owner of the machine. It implements remote.Images.
type lentImages struct{ d *Daemon }

// Find implements remote.Images.
func (l lentImages) Find(ctx context.Context, spec *sandbox.Spec, refused bool) (remote.Image, error) {
	img, err := l.find(ctx, spec.Labels[engine.LabelTenant], spec.Image, refused)
	if img == nil || err != nil {
		return nil, err
	}
	return img, nil
}

// find returns an image for a sandbox of a tenant. Nil: nodes get it themselves, or
// not at all.
func (l lentImages) find(ctx context.Context, tenant, ref string, refused bool) (*image.Lent, error) {
	if ref == "" || ref == engine.HostImage {
		return nil, nil
	}
	images, err := l.d.node.Images()
	if err != nil {
		return nil, err
	}
	who, err := guard.Principal(ctx)
	owner := err == nil && who.UID != nil
	files := slices.ContainsFunc([]string{"dir:", "tar:", "oci:", "docker-archive:"}, func(scheme string) bool { return strings.HasPrefix(ref, scheme) })
	if files || refused { // this machine's files, and the login of its owner
		if !owner {
			return nil, nil
		}
		img, err := images.Get(ctx, ref, image.GetOptions{})
		if err != nil {
			if refused {
				err = nil // the node's error says more
			}
			return nil, err
		}
		return images.Lend(ctx, img.Digest, func(image.Provenance) bool { return true })
	}
	built := false
	if strings.HasPrefix(ref, "sha256:") {
		built, err = store.Read(ctx, l.d.store, func(tx *store.Tx) (bool, error) { return tx.Templates().HasImage(ctx, tenant, ref) })
		if err != nil {
			return nil, err
		}
	}
	if err := l.d.services.Snapshots.FetchImage(ctx, tenant, ref); err != nil {
		return nil, err
	}
	return images.Lend(ctx, ref, func(p image.Provenance) bool { return built || !p.Pulled && mayUse(tenant, owner, p.Names) })
}

// mayUse reports whether a tenant may use an image that no registry has by its
// name or digest: everybody may use one that the owner of the machine has imported
// under a name, and what a build made belongs to its tenant.
func mayUse(tenant string, owner bool, names []string) bool {
	return owner || slices.ContainsFunc(names, func(name string) bool {
		return image.IsName(name) && !strings.HasPrefix(name, template.NamePrefix) || strings.HasPrefix(name, template.ImagePrefix(tenant))
	})
}

// lentAs returns the digest of an image on nodes, if one was sent.
func (l lentImages) lentAs(ref string) string {
	images, err := l.d.node.Images()
	if err != nil {
		return ref
	}
	return images.LentAs(ref)
}

// templateImages are the images of this machine, for saving those of templates and
// those that were imported. It implements snapshots.Images.
type templateImages struct{ d *Daemon }

// Has implements snapshots.Images.
func (t templateImages) Has(digest string) (bool, error) {
	images, err := t.d.node.Images()
	if err != nil {
		return false, err
	}
	return images.Has(digest)
}

// Lend implements snapshots.Images.
func (t templateImages) Lend(ctx context.Context, digest string) (snapshots.LentImage, error) {
	images, err := t.d.node.Images()
	if err != nil {
		return nil, err
	}
	img, err := images.Lend(ctx, digest, func(image.Provenance) bool { return true })
	if img == nil || err != nil {
		return nil, err
	}
	return img, nil
}

// Accept implements snapshots.Images.
func (t templateImages) Accept(ctx context.Context, digest, lent string, r io.Reader) error {
	images, err := t.d.node.Images()
	if err == nil {
		_, err = images.AcceptAs(ctx, digest, lent, r)
	}
	return err
}

// Names implements snapshots.Images. Those of builds are no one else's.
func (t templateImages) Names(ref string) (names []snapshots.ImageName, err error) {
	images, err := t.d.node.Images()
	if err != nil {
		return nil, err
	}
	all, err := images.Names(ref)
	for _, n := range all {
		if !strings.HasPrefix(n.Name, template.NamePrefix) {
			names = append(names, snapshots.ImageName(n))
		}
	}
	return names, err
}

// SetName implements snapshots.Images.
func (t templateImages) SetName(ctx context.Context, old, to snapshots.ImageName) (bool, error) {
	images, err := t.d.node.Images()
	if err != nil {
		return false, err
	}
	return images.SetName(ctx, image.NameState(old), image.NameState(to))
}

// NamesStamp implements snapshots.Images.
func (t templateImages) NamesStamp() string {
	images, err := t.d.node.Images()
	if err != nil {
		return ""
	}
	return images.NamesStamp()
}
