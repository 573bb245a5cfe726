package daemon

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/sandbox"
)

func (s service) CreateTenant(ctx context.Context, n api.NewTenant) (sandbox.Tenant, error) {
	return s.Plane.CreateTenant(ctx, n.ID, n.Limits)
}

func (s service) UpdateTenant(ctx context.Context, id string, c api.TenantChange) (sandbox.Tenant, error) {
	change := plane.TenantChange{Disabled: c.Disabled}
	if c.Limits != nil {
		change.Limits = func(l *sandbox.Limits) { limitsOf(l, c.Limits) }
	}
	return s.Plane.UpdateTenant(ctx, id, change)
}

// limitsOf changes the limits that are named.
func limitsOf(l *sandbox.Limits, c *api.LimitsChange) {
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
