package plane

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

func (p *Plane) tenant(ctx context.Context, tx *store.Tx, id string) (t sandbox.Tenant, err error) {
	stored, err := tx.Tenant(ctx, id)
	if err != nil {
		return t, err
	}
	t = stored.Tenant
	t.Usage, err = tx.Usage(ctx, id)
	return t, err
}

// OwnTenant returns the caller's tenant.
func (p *Plane) OwnTenant(ctx context.Context) (sandbox.Tenant, error) {
	who, err := p.Look(ctx, ops.QuotaGet, "")
	if err != nil {
		return sandbox.Tenant{}, err
	}
	t, err := store.Read(ctx, p.Store, func(tx *store.Tx) (sandbox.Tenant, error) { return p.tenant(ctx, tx, who.Tenant) })
	return t, core.Named(ops.QuotaGet, err)
}

// Tenants lists all tenants by name.
func (p *Plane) Tenants(ctx context.Context) (all []sandbox.Tenant, err error) {
	err = p.AsOwner(ctx, ops.TenantList, "", func(ctx context.Context) error {
		return p.Store.View(ctx, func(tx *store.Tx) error {
			known, err := tx.Operator().Tenants(ctx)
			all = make([]sandbox.Tenant, len(known))
			for i := 0; i < len(known) && err == nil; i++ {
				all[i] = known[i].Tenant
				all[i].Usage, err = tx.Usage(ctx, known[i].ID)
			}
			return err
		})
	})
	return all, err
}

// Tenant returns any tenant.
func (p *Plane) Tenant(ctx context.Context, id string) (t sandbox.Tenant, err error) {
	err = p.AsOwner(ctx, ops.TenantGet, id, func(ctx context.Context) error {
		t, err = store.Read(ctx, p.Store, func(tx *store.Tx) (sandbox.Tenant, error) { return p.tenant(ctx, tx, id) })
		return err
	})
	return t, err
}

// CreateTenant makes a tenant. One of that name is CodeAlreadyExists.
func (p *Plane) CreateTenant(ctx context.Context, id string, l sandbox.Limits) (t sandbox.Tenant, err error) {
	err = p.AsOwner(ctx, ops.TenantCreate, id, func(ctx context.Context) error {
		return p.Store.Update(ctx, func(tx *store.Tx) error {
			if _, err := tx.Tenant(ctx, id); err == nil {
				return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Subject: id, Message: "there is a tenant of that name"}
			}
			if _, err := tx.EnsureTenant(ctx, id); err != nil {
				return err
			}
			if err := tx.SetLimits(ctx, id, l); err != nil {
				return err
			}
			t, err = p.tenant(ctx, tx, id)
			return err
		})
	})
	return t, err
}

// UpdateTenant changes a tenant. What it has already is left alone.
func (p *Plane) UpdateTenant(ctx context.Context, id string, c sandbox.TenantChange) (t sandbox.Tenant, err error) {
	op := ops.TenantLimits
	if c.Disabled != nil {
		op = ops.TenantDisable
	}
	err = p.AsOwner(ctx, op, id, func(ctx context.Context) error {
		return p.Store.Update(ctx, func(tx *store.Tx) error {
			t, err := tx.LockTenant(ctx, id)
			if err == nil && c.Limits != nil {
				err = tx.SetLimits(ctx, id, c.Limits.Apply(t.Limits))
			}
			if err == nil && c.Disabled != nil {
				err = tx.DisableTenant(ctx, id, *c.Disabled)
			}
			return err
		})
	})
	if err != nil {
		return t, err
	}
	if c.Disabled != nil {
		p.review(context.WithoutCancel(ctx), p.holds.all(func(need standing) bool { return need.tenant == id }))
	}
	return p.Tenant(ctx, id)
}

// Backup returns a consistent copy of the database, which the caller closes.
func (p *Plane) Backup(ctx context.Context) (copied io.ReadCloser, err error) {
	err = p.AsOwner(ctx, ops.StateBackup, "", func(ctx context.Context) error {
		dir, err := os.MkdirTemp(p.cfg.Scratch, ".backup-")
		if err != nil {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "there is no place for the copy", Cause: err}
		}
		defer func() { _ = os.RemoveAll(dir) }() // what is open can still be read
		path := filepath.Join(dir, "atoll.db")
		if err := p.Store.Backup(ctx, path); err != nil {
			return err
		}
		f, err := os.Open(path)
		copied = f
		return err
	})
	return copied, err
}

// MayObserve allows the owner of the machine, and keys of its own tenant that
// may look, to see what concerns all tenants together.
func (p *Plane) MayObserve(ctx context.Context) error {
	const op = ops.MetricsGet
	who, err := p.Look(ctx, op, "")
	if err == nil && who.UID == nil && who.Tenant != DefaultTenant {
		err = &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: "only the owner of the machine may do that"}
	}
	return core.Named(op, err)
}
