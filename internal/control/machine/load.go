package machine

import (
	"context"
	"slices"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Load returns the free capacity of the daemon. The owner of the machine, and keys
// of the owner's tenant, see all sandboxes and images. Others see their own
// sandboxes, and those images that their sandboxes were made from.
func (s *Service) Load(ctx context.Context) (l operator.Load, err error) {
	const op = ops.LoadGet
	defer core.Name(op, &err)
	who, err := s.Look(ctx, op, "")
	if err != nil {
		return l, err
	}
	tenant := who.Tenant
	if who.Tenant == key.DefaultTenant {
		tenant = ""
	}
	l.MemoryFree, l.MemoryTotal = s.cfg.Memory()
	l.Images, err = s.cfg.Images(ctx)
	if err != nil {
		return l, err
	}
	if be, err := s.cfg.Providers.Backend(ctx, ""); err == nil {
		l.Isolation = be.Isolation(ctx)
	}
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		if l.Sandboxes, l.MemoryReserved, err = tx.Operator().Load(ctx, s.Node, tenant); err != nil || tenant == "" {
			return err
		}
		used, err := tx.Operator().ImagesOf(ctx, tenant)
		for i := range used {
			used[i] = s.cfg.ImageName(used[i])
		}
		l.Images = slices.DeleteFunc(l.Images, func(image string) bool { return !slices.Contains(used, image) })
		return err
	})
	if l.Images == nil {
		l.Images = []string{}
	}
	return l, err
}
