package sessions

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Evacuate moves the sessions of all tenants that have their sandbox on a node to
// other nodes, one by one. kept are the sandboxes of those that could not be
// moved, with reasons.
func (s *Movers) Evacuate(ctx context.Context, provider string) (moved []operator.NodeMoved, kept []operator.NodeSandbox, err error) {
	all, err := s.leases.active(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, k := range all {
		row, sb, err := s.residents(ctx, k)
		if err != nil {
			return moved, kept, err
		}
		if row.ID == "" || sb.Provider != provider {
			continue
		}
		receipt, err := s.evacuate(ctx, row)
		switch {
		case ctx.Err() != nil:
			return moved, kept, ctx.Err()
		case err != nil:
			kept = append(kept, operator.NodeSandbox{Tenant: k.Tenant, Sandbox: sb.ID, Session: row.Name, Reason: err.Error()})
		default:
			moved = append(moved, operator.NodeMoved{Tenant: k.Tenant, Session: row.Name, Receipt: receipt})
		}
	}
	return moved, kept, nil
}

// residents returns a session of a lease and its sandbox. Both are empty if there
// is none.
func (s *Movers) residents(ctx context.Context, k store.LeaseKey) (row store.Session, sb store.Sandbox, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		row, sb = store.Session{}, store.Sandbox{}
		var l lease.Lease
		if l, err = tx.Sessions().Lease(ctx, k.Tenant, k.Group); err != nil || l.Sandbox == "" {
			return err
		}
		rows, err := tx.Sessions().InGroup(ctx, k.Tenant, k.Group)
		if err != nil || len(rows) == 0 {
			return err
		}
		sb, err = tx.Sandboxes().Get(ctx, k.Tenant, l.Sandbox)
		if err == nil && sb.State != sandbox.Gone {
			row = rows[0]
		}
		return ignore(err, sandbox.CodeNotFound)
	})
	return row, sb, err
}

// evacuate moves a session to the node that suits it best, acting for its tenant.
func (s *Movers) evacuate(ctx context.Context, row store.Session) (receipt durable.Receipt, err error) {
	const op = ops.SessionSwap
	ctx = guard.WithOwner(ctx, row.Tenant)
	return receipt, s.Do(ctx, op, guard.Subject{Subject: row.Name}, func(ctx context.Context) error {
		for range 2 { // another caller may be faster
			target, _, err := s.providers.Place(&row.Spec)
			if err != nil {
				return err
			}
			if receipt, err = s.swap(ctx, row, target); sandbox.CodeOf(err) != sandbox.CodeStale && !errors.Is(err, store.ErrNodeClosed) {
				return err
			}
		}
		return stale(row.Name, "the session moves at the same time")
	})
}
