package sessions

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// leases stores the leases of all tenants.
type leases struct {
	*core.Core
	cfg      lease.Config
	observer Observer
}

func (s *leases) of(tenant string) tenantLeases { return tenantLeases{s, tenant} }

// tenantLeases stores the leases of one tenant. It implements session.Leases.
type tenantLeases struct {
	*leases
	tenant string
}

func (l tenantLeases) Load(ctx context.Context, group string) (lease.Lease, error) {
	return store.Read(ctx, l.Store, func(tx *store.Tx) (lease.Lease, error) { return tx.Sessions().Lease(ctx, l.tenant, group) })
}

// Apply applies an operation and records changes of state in the event log.
func (l tenantLeases) Apply(ctx context.Context, group string, op lease.Op) (after lease.Lease, effect lease.Effect, err error) {
	var before lease.Lease
	var name string
	err = l.Store.Update(ctx, func(tx *store.Tx) error {
		var labels map[string]string
		if before, err = tx.Sessions().Lease(ctx, l.tenant, group); err != nil {
			return err
		}
		if all, err := tx.Sessions().InGroup(ctx, l.tenant, group); err != nil {
			return err
		} else if len(all) > 0 {
			name, labels = all[0].Name, all[0].Labels
		}
		if after, effect, err = tx.Sessions().ApplyLease(ctx, l.tenant, group, op, l.cfg, labels); err != nil || !effect.Done {
			return err
		}
		return publish(ctx, tx, l.tenant, group, op)
	})
	if err != nil {
		return before, effect, err
	}
	switch op.(type) {
	case lease.Rotate:
		if effect.Done {
			l.observer.Rotated()
		}
	case lease.Evict:
		if effect.Done {
			l.observer.Evicted()
		}
	}
	if before.State != after.State {
		l.changed(ctx, l.tenant, name, before, after)
	}
	return after, effect, nil
}

// Groups returns the tenant's groups that may have a sandbox.
func (l tenantLeases) Groups(ctx context.Context) ([]string, error) {
	keys, err := l.active(ctx)
	var out []string
	for _, k := range keys {
		if k.Tenant == l.tenant {
			out = append(out, k.Group)
		}
	}
	return out, err
}

// cooling is how long a lease that became cold is still checked for unused
// sandboxes.
const cooling = time.Hour

func (s *leases) active(ctx context.Context) ([]store.LeaseKey, error) {
	since := s.Store.Now().Add(-cooling)
	return store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.LeaseKey, error) { return tx.Operator().Leases(ctx, since) })
}

var stateEvents = map[lease.State]eventlog.Type{
	lease.Warming: eventlog.LeaseWarming, lease.Warm: eventlog.LeaseWarm, lease.Draining: eventlog.LeaseDraining, lease.Cold: eventlog.LeaseCold,
}

// changed records a change of a lease's state.
func (s *leases) changed(ctx context.Context, tenant, name string, before, after lease.Lease) {
	id := after.Sandbox
	if id == "" {
		id = before.Sandbox
	}
	s.fact(ctx, tenant, name, id, stateEvents[after.State], after.Epoch, ops.SessionAcquire)
}

// fact records what happened to a session.
func (s *leases) fact(ctx context.Context, tenant, name string, id sandbox.ID, t eventlog.Type, epoch int64, op ops.Op) {
	a := audit.Action{Tenant: tenant, Op: op, Sandbox: id, Subject: name}
	a.Request, a.Trace = span.IDs(ctx)
	s.Report(ctx, s.Audit.FactLater(a, t, func(e *eventlog.Event) { e.Epoch = epoch }))
}
