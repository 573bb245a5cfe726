// Package tenants manages tenants, their API keys and their limits. It also
// ends requests in progress whose key is no longer valid.
package tenants

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Service manages tenants and keys. It is safe for concurrent use.
type Service struct {
	*core.Core
	ring     *key.Ring
	meter    *quota.Meter
	requests requests
}

// New returns the service.
func New(c *core.Core) *Service {
	return &Service{Core: c, ring: key.NewRing(c.Store), meter: quota.NewMeter(c.Store.Now)}
}

func withUsage(ctx context.Context, tx *store.Tx, stored store.Tenant) (t operator.Tenant, err error) {
	t = stored.Tenant
	if t.Usage, err = tx.Tenants().Usage(ctx, t.ID); err != nil {
		return t, err
	}
	month, _ := quota.Month(tx.Now())
	warm, err := tx.Sessions().Warm(ctx, t.ID, month)
	t.Usage.WarmHours = warm.Hours()
	return t, err
}

func read(ctx context.Context, tx *store.Tx, id string) (operator.Tenant, error) {
	stored, err := tx.Tenants().Get(ctx, id)
	if err != nil {
		return operator.Tenant{}, err
	}
	return withUsage(ctx, tx, stored)
}

func (s *Service) read(ctx context.Context, id string) (operator.Tenant, error) {
	return store.Read(ctx, s.Store, func(tx *store.Tx) (operator.Tenant, error) { return read(ctx, tx, id) })
}

// OwnTenant returns the caller's tenant.
func (s *Service) OwnTenant(ctx context.Context) (operator.Tenant, error) {
	return core.Read(ctx, s.Core, ops.QuotaGet, "", func(tx *store.Tx, tenant string) (operator.Tenant, error) { return read(ctx, tx, tenant) })
}

// Exists returns nil if there is a tenant of that name, also a disabled one, else
// CodeNotFound.
func (s *Service) Exists(ctx context.Context, name string) error {
	return s.Store.View(ctx, func(tx *store.Tx) error {
		_, err := tx.Tenants().Get(ctx, name)
		return err
	})
}

// Tenants lists all tenants by name. Only the owner of the machine may call it.
func (s *Service) Tenants(ctx context.Context) (all []operator.Tenant, err error) {
	err = s.AsOwner(ctx, ops.TenantList, "", func(ctx context.Context) error {
		return s.Store.View(ctx, func(tx *store.Tx) error {
			known, err := tx.Operator().Tenants(ctx)
			all = make([]operator.Tenant, len(known))
			for i := 0; i < len(known) && err == nil; i++ {
				all[i], err = withUsage(ctx, tx, known[i])
			}
			return err
		})
	})
	return all, err
}

// Tenant returns any tenant. Only the owner of the machine may call it.
func (s *Service) Tenant(ctx context.Context, id string) (t operator.Tenant, err error) {
	err = s.AsOwner(ctx, ops.TenantGet, id, func(ctx context.Context) error {
		t, err = s.read(ctx, id)
		return err
	})
	return t, err
}

// CreateTenant creates a tenant. If the name is in use, it returns
// CodeAlreadyExists. Only the owner of the machine may call it.
func (s *Service) CreateTenant(ctx context.Context, n operator.NewTenant) (t operator.Tenant, err error) {
	err = s.AsOwner(ctx, ops.TenantCreate, n.ID, func(ctx context.Context) error {
		return s.Store.Update(ctx, func(tx *store.Tx) error {
			if _, err := tx.Tenants().Get(ctx, n.ID); err == nil {
				return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Subject: n.ID, Message: "a tenant with that name exists"}
			}
			if _, err := tx.Tenants().Ensure(ctx, n.ID); err != nil {
				return err
			}
			if err := tx.Tenants().SetLimits(ctx, n.ID, n.Limits); err != nil {
				return err
			}
			t, err = read(ctx, tx, n.ID)
			return err
		})
	})
	return t, err
}

// UpdateTenant changes the limits of a tenant, or disables or enables it. New
// limits do not affect existing sandboxes. Disabling ends the tenant's requests
// in progress. Only the owner of the machine may call it.
func (s *Service) UpdateTenant(ctx context.Context, id string, c operator.TenantChange) (t operator.Tenant, err error) {
	op := ops.TenantLimits
	if c.Disabled != nil {
		op = ops.TenantDisable
	}
	err = s.AsOwner(ctx, op, id, func(ctx context.Context) error {
		return s.Store.Update(ctx, func(tx *store.Tx) error {
			t, err := tx.Tenants().Lock(ctx, id)
			if err == nil && c.Limits != nil {
				err = tx.Tenants().SetLimits(ctx, id, c.Limits.Apply(t.Limits))
			}
			if err == nil && c.Disabled != nil {
				err = tx.Tenants().Disable(ctx, id, *c.Disabled)
			}
			return err
		})
	})
	if err != nil {
		return t, err
	}
	if c.Disabled != nil {
		s.review(context.WithoutCancel(ctx), s.requests.matching(func(c credential) bool { return c.tenant == id }))
	}
	return s.Tenant(ctx, id)
}
