package plane

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

const opPrune = ops.AuditPrune

// PruneAudit removes the oldest records of the log of any tenant; an empty one
// is the caller's own. It is recorded in that log, too.
func (p *Plane) PruneAudit(ctx context.Context, tenant string, what eventlog.Prune) (done eventlog.Pruned, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return done, err
	}
	if tenant == "" {
		tenant = who.Tenant
	}
	err = p.AsOwner(ctx, opPrune, tenant, func(ctx context.Context) error {
		if what.Before.IsZero() && what.UpTo <= 0 {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "before", Message: "neither a time nor a number is given, up to which to remove records"}
		}
		if _, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenant(ctx, tenant) }); err != nil {
			return err
		}
		done, err = p.cfg.Log.Prune(ctx, tenant, what, p.pruning(ctx, eventlog.Actor{Key: who.Key, UID: who.UID}))
		return err
	})
	return done, err
}

// pruning is how a log says that it was pruned.
func (p *Plane) pruning(ctx context.Context, by eventlog.Actor) eventlog.Event {
	by.Node = p.Node
	e := eventlog.Event{Op: string(opPrune), Actor: by}
	e.Request, e.Trace = span.IDs(ctx)
	return e
}

// retentionPeriod is how often logs are looked at for what is too old.
const retentionPeriod = time.Hour

// WatchRetention removes records of all logs that are older than keep, until ctx
// ends.
func (p *Plane) WatchRetention(ctx context.Context, keep time.Duration) {
	for {
		if err := p.retain(ctx, keep); err != nil && ctx.Err() == nil {
			p.Report(ctx, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retentionPeriod):
		}
	}
}

// retain prunes the logs of all tenants. One that is not sound stays as it is.
func (p *Plane) retain(ctx context.Context, keep time.Duration) error {
	tenants, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Tenant, error) { return tx.Operator().Tenants(ctx) })
	if err != nil {
		return err
	}
	before := p.Store.Now().Add(-keep)
	for _, t := range tenants {
		if _, err := p.cfg.Log.Prune(ctx, t.ID, eventlog.Prune{Before: before}, p.pruning(ctx, eventlog.Actor{})); err != nil {
			p.Report(ctx, err)
		}
	}
	return nil
}
