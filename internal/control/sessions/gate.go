package sessions

import (
	"context"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/store"
)

// gate closes the gate of a lease while its tenant has used up its warm time, and
// opens it afterwards. It returns the lease, and why the gate is closed: an error
// of package quota.
func (s *Service) gate(ctx context.Context, tenant, group string) (l lease.Lease, closed, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		t, err := tx.Tenants().Get(ctx, tenant)
		if err != nil {
			return err
		}
		if l, err = tx.Sessions().Lease(ctx, tenant, group); err != nil || t.Limits.WarmHours == 0 {
			return err
		}
		month, _ := quota.Month(tx.Now())
		used, err := tx.Sessions().Warm(ctx, tenant, month)
		closed = quota.CheckWarm(t.Limits, used, tx.Now())
		return err
	})
	if err == nil && l.Gated != (closed != nil) {
		l, _, err = leases{s, tenant}.Apply(ctx, group, lease.Gate{Closed: closed != nil})
	}
	return l, closed, err
}

// admit refuses a holder whose tenant has used up its warm time. Turns that run go
// on, with the operators that serve them.
func (s *Service) admit(ctx context.Context, row store.Session, op lease.Acquire) error {
	l, closed, err := s.gate(ctx, row.Tenant, row.Group)
	if err != nil || closed == nil || l.Holds(op.Kind, op.ID) || op.Kind == lease.Operator && l.Count(lease.Turn) > 0 {
		return err
	}
	return closed
}
