package tenants

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox/operator"
)

type limitsKey struct{}

// WithLimits returns a context in which Limits returns l without reading the
// store.
func (s *Service) WithLimits(ctx context.Context, l operator.Limits) context.Context {
	return context.WithValue(ctx, limitsKey{}, l)
}

// Limits returns the limits of a tenant. It has no guard.
func (s *Service) Limits(ctx context.Context, tenant string) (operator.Limits, error) {
	if l, known := ctx.Value(limitsKey{}).(operator.Limits); known {
		return l, nil
	}
	t, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, tenant) })
	return t.Limits, err
}

// MeterExec counts a command of a tenant. It returns CodeExhausted if the
// tenant starts commands too fast.
func (s *Service) MeterExec(ctx context.Context, tenant string) error {
	l, err := s.Limits(ctx, tenant)
	if err != nil || l.ExecRate == 0 {
		return err
	}
	return s.meter.Exec(tenant, l)
}

// MeterOutput counts n bytes of command output. It returns how long to wait
// before reading more.
func (s *Service) MeterOutput(tenant string, l operator.Limits, n int) time.Duration {
	return s.meter.Output(tenant, l, n)
}
