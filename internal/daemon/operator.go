package daemon

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/server/api"
)

func shownTenant(t plane.Tenant) api.Tenant {
	return api.Tenant{
		ID: t.ID, Created: t.Created, Disabled: orNil(t.Disabled), Limits: api.Limits(t.Limits), Usage: api.Usage(t.Usage),
	}
}

func (s service) OwnTenant(ctx context.Context) (api.Tenant, error) {
	t, err := s.Plane.OwnTenant(ctx)
	return shownTenant(t), err
}

func (s service) Tenants(ctx context.Context) ([]api.Tenant, error) {
	all, err := s.Plane.Tenants(ctx)
	out := make([]api.Tenant, len(all))
	for i, t := range all {
		out[i] = shownTenant(t)
	}
	return out, err
}

func (s service) Tenant(ctx context.Context, id string) (api.Tenant, error) {
	t, err := s.Plane.Tenant(ctx, id)
	return shownTenant(t), err
}

func (s service) CreateTenant(ctx context.Context, n api.NewTenant) (api.Tenant, error) {
	t, err := s.Plane.CreateTenant(ctx, n.ID, quota.Limits(n.Limits))
	return shownTenant(t), err
}

func (s service) UpdateTenant(ctx context.Context, id string, c api.TenantChange) (api.Tenant, error) {
	change := plane.TenantChange{Disabled: c.Disabled}
	if c.Limits != nil {
		change.Limits = func(l *quota.Limits) { limitsOf(l, c.Limits) }
	}
	t, err := s.Plane.UpdateTenant(ctx, id, change)
	return shownTenant(t), err
}

// limitsOf changes the limits that are named.
func limitsOf(l *quota.Limits, c *api.LimitsChange) {
	set(&l.Boxes, c.Boxes)
	set(&l.CPUs, c.CPUs)
	set(&l.Memory, c.Memory)
	set(&l.Disk, c.Disk)
	set(&l.Snapshots, c.Snapshots)
	set(&l.SnapshotBytes, c.SnapshotBytes)
	set(&l.ExecRate, c.ExecRate)
	set(&l.ExecBurst, c.ExecBurst)
	set(&l.OutputRate, c.OutputRate)
	set(&l.OutputBurst, c.OutputBurst)
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}
