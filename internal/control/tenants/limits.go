package tenants

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

type limitsKey struct{}

// WithLimits returns a context in which Limits returns l, for a caller that has
// just read the limits of the tenant.
func (s *Service) WithLimits(ctx context.Context, l sandbox.Limits) context.Context {
	return context.WithValue(ctx, limitsKey{}, l)
}

// Limits returns what a tenant may use. The caller has authorised that.
func (s *Service) Limits(ctx context.Context, tenant string) (sandbox.Limits, error) {
	if l, known := ctx.Value(limitsKey{}).(sandbox.Limits); known {
		return l, nil
	}
	t, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, tenant) })
	return t.Limits, err
}

// MeterExec counts a command of a tenant. If the tenant starts commands too fast,
// the error is CodeExhausted.
func (s *Service) MeterExec(ctx context.Context, tenant string) error {
	l, err := s.Limits(ctx, tenant)
	if err != nil || l.ExecRate == 0 {
		return err
	}
	return s.meter.Exec(tenant, l)
}

// MeterOutput counts n bytes of the output of a command. It returns how long to
// wait before more is read.
func (s *Service) MeterOutput(tenant string, l sandbox.Limits, n int) time.Duration {
	return s.meter.Output(tenant, l, n)
}
