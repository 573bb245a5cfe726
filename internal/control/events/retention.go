package events

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const opPrune = ops.AuditPrune

// PruneAudit removes the oldest records of a tenant's log, by default the
// caller's. The removal is recorded in the same log. Only the owner of the
// machine may call it.
func (s *Service) PruneAudit(ctx context.Context, in operator.AuditPrune) (out operator.AuditPruned, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	if in.Tenant == "" {
		in.Tenant = who.Tenant
	}
	err = s.AsOwner(ctx, opPrune, in.Tenant, func(ctx context.Context) error {
		if in.Before.IsZero() && in.UpTo <= 0 {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "before", Message: "neither a time nor a number of a record is given"}
		}
		if _, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, in.Tenant) }); err != nil {
			return err
		}
		note := s.note(ctx, who)
		done, err := s.log.Prune(ctx, in.Tenant, eventlog.Prune{UpTo: in.UpTo, Before: in.Before}, note)
		out = operator.AuditPruned{Removed: done.Removed, Through: done.Through}
		return err
	})
	return out, err
}

// note returns the event that records a removal.
func (s *Service) note(ctx context.Context, by key.Principal) eventlog.Event {
	e := eventlog.Event{Event: sandbox.Event{Op: string(opPrune), Key: by.Key, UID: by.UID, Node: s.Node}}
	e.Request, e.Trace = span.IDs(ctx)
	return e
}

// retentionPeriod is the interval between removals of old records.
const retentionPeriod = time.Hour

// WatchRetention removes the records of all logs that are older than keep, until
// ctx ends.
func (s *Service) WatchRetention(ctx context.Context, keep time.Duration) {
	for {
		if err := s.retain(ctx, keep); err != nil && ctx.Err() == nil {
			s.Report(ctx, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retentionPeriod):
		}
	}
}

// retain prunes the logs of all tenants. A log that fails verification is left
// unchanged.
func (s *Service) retain(ctx context.Context, keep time.Duration) error {
	tenants, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Tenant, error) { return tx.Operator().Tenants(ctx) })
	if err != nil {
		return err
	}
	before := s.Store.Now().Add(-keep)
	for _, t := range tenants {
		if _, err := s.log.Prune(ctx, t.ID, eventlog.Prune{Before: before}, s.note(ctx, key.Principal{})); err != nil {
			s.Report(ctx, err)
		}
	}
	return nil
}
