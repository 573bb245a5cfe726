package machine

import (
	"context"
	"fmt"
	"io"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// ImageUses lists the images used by stopped and paused sandboxes, snapshots
// and templates of all tenants. Only the owner of the machine may call it,
// before removing images: prewarmed sandboxes release theirs.
func (s *Service) ImageUses(ctx context.Context) (all []operator.ImageUse, err error) {
	err = s.AsOwner(ctx, ops.ImageUses, "", func(ctx context.Context) error {
		for _, be := range s.cfg.Providers.Opened() {
			if d, ok := driver.As[driver.Drainer](be.Driver); ok {
				d.Drain()
			}
		}
		all, err = s.NeededImages(ctx)
		return err
	})
	return all, err
}

// ImportImage stores an image that another daemon sends, under the digest of its
// content. What is not exactly that image is CodeInvalid; nothing of it is stored
// then. It gets no name, so that it does not replace what callers of other tenants
// use. Only the owner of the machine, and keys of the owner's tenant, may import.
func (s *Service) ImportImage(ctx context.Context, digest string, r io.Reader) error {
	return s.Change(ctx, ops.ImageImport, guard.Subject{Subject: digest}, func(ctx context.Context) (string, error) {
		return "", s.cfg.Accept(ctx, digest, r)
	}, mayImport)
}

func mayImport(who key.Principal) error {
	if who.UID == nil && who.Tenant != key.DefaultTenant {
		return &sandbox.Error{Code: sandbox.CodeDenied, Message: "only the owner of the machine, and keys of the tenant " + key.DefaultTenant + ", may import images"}
	}
	return nil
}

// NeededImages is ImageUses without a guard, for the daemon itself.
func (s *Service) NeededImages(ctx context.Context) ([]operator.ImageUse, error) {
	sandboxes, err := s.cfg.Sandboxes.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	var all []operator.ImageUse
	need := func(image, tenant, format string, args ...any) {
		by := fmt.Sprintf(format, args...)
		if tenant != key.DefaultTenant {
			by += " of the tenant " + tenant
		}
		if image != "" && image != "host" {
			all = append(all, operator.ImageUse{Image: image, By: by})
		}
	}
	for _, b := range sandboxes {
		if b.State != sandbox.Running {
			need(b.Spec.Image, b.Tenant, "the sandbox %s, which is %s", b.Name, b.State)
		}
	}
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		const batch = 500
		for after := ""; ; {
			some, err := tx.Operator().Snapshots(ctx, s.Node, after, batch)
			if err != nil {
				return err
			}
			for _, one := range some {
				after = one.ID
				if one.Owner == "" {
					need(one.Spec.Image, one.Tenant, "the snapshot %s", one.Name)
				}
			}
			if len(some) < batch {
				break
			}
		}
		tenants, err := tx.Operator().Tenants(ctx)
		for i := 0; i < len(tenants) && err == nil; i++ {
			var templates []store.Template
			templates, err = tx.Templates().List(ctx, tenants[i].ID)
			for _, t := range templates {
				need(t.Image, t.Tenant, "the template %s:%s", t.Name, t.Tag)
			}
		}
		return err
	})
	return all, err
}
