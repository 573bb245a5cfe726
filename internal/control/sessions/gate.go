package sessions

import (
	"context"
	"fmt"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// gate closes the gate of a lease while its tenant has used up its warm time, and
// opens it afterwards. It returns the lease, and why the gate is closed: an error
// of package quota.
func (s *leases) gate(ctx context.Context, tenant, group string) (l lease.Lease, closed, err error) {
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
		l, _, err = s.of(tenant).Apply(ctx, group, lease.Gate{Closed: closed != nil})
	}
	return l, closed, err
}

// admit refuses a holder whose tenant has used up its warm time. Running turns
// continue, with the operators that serve them.
func (s *leases) admit(ctx context.Context, row store.Session, op lease.Acquire) error {
	l, closed, err := s.gate(ctx, row.Tenant, row.Group)
	if err != nil || closed == nil || l.Holds(op.Kind, op.ID) || op.Kind == lease.Operator && l.Count(lease.Turn) > 0 {
		return err
	}
	return closed
}

// fence refuses requests for an earlier sandbox of a session.
func (s *leases) fence(ctx context.Context, row store.Session, l lease.Lease, epoch int64, op ops.Op) error {
	switch n := len(l.Failures); {
	case l.Serves() && l.Epoch == epoch:
		return nil
	case n > 0 && l.State == lease.Cold && l.Epoch == epoch: // the turn gets the same error again
		return &l.Failures[n-1].Err
	}
	s.fact(ctx, row.Tenant, row.Name, l.Sandbox, eventlog.FenceRefused, epoch, op)
	return stale(row.Name, fmt.Sprintf("epoch %d is over: the session is %s, at epoch %d", epoch, l.State, l.Epoch))
}

func stale(name, why string) error {
	return &sandbox.Error{Code: sandbox.CodeStale, Subject: name, Message: why, Hint: "acquire the session again; its files may be older, and its processes are gone"}
}

// moving reports whether any daemon is moving a lease.
func (s *leases) moving(l lease.Lease) bool { return s.Store.Now().Before(l.Moving) }
