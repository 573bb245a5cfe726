package daemon

import (
	"context"

	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/sandbox"
)

func (s service) CreateTenant(ctx context.Context, n api.NewTenant) (sandbox.Tenant, error) {
	return s.Plane.CreateTenant(ctx, n.ID, n.Limits)
}
