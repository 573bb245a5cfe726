package plane

import (
	"context"
	"io"
	"iter"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Authenticate finds out who bears a key.
func (p *Plane) Authenticate(ctx context.Context, token string) (key.Principal, error) {
	return p.ring.Authenticate(ctx, token)
}

// CreateKey makes a key of a tenant, by default the caller's. Only the owner of
// the machine makes keys of others, and with them tenants. token is the key
// itself, which cannot be found again.
func (p *Plane) CreateKey(ctx context.Context, tenant string, n key.New) (token string, k store.Key, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return "", k, err
	}
	if tenant == "" {
		tenant = who.Tenant
	}
	others := func(who key.Principal) error {
		if tenant != who.Tenant && who.UID == nil {
			return &sandbox.Error{Code: sandbox.CodeDenied, Subject: "tenant", Message: "only the owner of the machine makes keys of other tenants"}
		}
		return nil
	}
	err = p.Change(ctx, ops.KeyCreate, guard.Subject{Subject: n.Name}, func(ctx context.Context) (string, error) {
		err := p.Store.Update(ctx, func(tx *store.Tx) (err error) {
			if who.UID != nil {
				if _, err := tx.EnsureTenant(ctx, tenant); err != nil {
					return err
				}
			}
			token, k, err = p.ring.Create(ctx, tx, tenant, n)
			return err
		})
		return k.ID, err
	}, others)
	if err != nil {
		return "", store.Key{}, core.Named(ops.KeyCreate, err)
	}
	return token, k, nil
}

// Keys lists the keys of the caller's tenant.
func (p *Plane) Keys(ctx context.Context) ([]store.Key, error) {
	who, err := p.Look(ctx, ops.KeyList, "")
	if err != nil {
		return nil, err
	}
	keys, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Key, error) { return tx.Keys(ctx, who.Tenant) })
	return keys, core.Named(ops.KeyList, err)
}

// RevokeKey ends a key of the caller's tenant, and what is done with it.
func (p *Plane) RevokeKey(ctx context.Context, id string) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	err = p.Act(ctx, control.Action{Op: ops.KeyRevoke, Subject: id}, func(ctx context.Context) error {
		return p.Store.Update(ctx, func(tx *store.Tx) error { return tx.RevokeKey(ctx, who.Tenant, id) })
	})
	p.review(context.WithoutCancel(ctx), p.holds.all(func(need standing) bool { return need.key == id }))
	return core.Named(ops.KeyRevoke, err)
}

// mayRead authorises reading what a filter selects.
func (p *Plane) mayRead(ctx context.Context, op ops.Op, f *eventlog.Filter) (who key.Principal, err error) {
	if who, err = p.Look(ctx, op, ""); err == nil {
		err = core.Named(op, f.Validate())
	}
	return who, err
}

// Events returns a part of the log of the caller's tenant.
func (p *Plane) Events(ctx context.Context, f eventlog.Filter, after int64, limit int) ([]eventlog.Event, error) {
	who, err := p.mayRead(ctx, ops.EventList, &f)
	if err != nil {
		return nil, err
	}
	events, err := p.cfg.Log.Read(ctx, who.Tenant, f, after, limit)
	return events, core.Named(ops.EventList, err)
}

// FollowEvents yields the log of the caller's tenant after a record, and what
// is added to it until ctx ends.
func (p *Plane) FollowEvents(ctx context.Context, f eventlog.Filter, after int64) (iter.Seq2[eventlog.Event, error], error) {
	who, err := p.mayRead(ctx, ops.EventFollow, &f)
	if err != nil {
		return nil, err
	}
	return p.cfg.Log.Follow(ctx, who.Tenant, f, after), nil
}

// ExportEvents writes the log of the caller's tenant as JSON lines, each with
// the hash of its record.
func (p *Plane) ExportEvents(ctx context.Context, f eventlog.Filter, w io.Writer) error {
	who, err := p.mayRead(ctx, ops.EventList, &f)
	if err != nil {
		return err
	}
	return core.Named(ops.EventList, p.cfg.Log.Export(ctx, who.Tenant, f, w))
}

// Records reads a part of the log of the caller's tenant after a record, each
// with the hash of its record. It is empty at the end of the log.
func (p *Plane) Records(ctx context.Context, f eventlog.Filter, after int64, limit int) ([]eventlog.Record, error) {
	who, err := p.mayRead(ctx, ops.EventList, &f)
	if err != nil {
		return nil, err
	}
	page, err := p.cfg.Log.Records(ctx, who.Tenant, f, after, limit)
	return page, core.Named(ops.EventList, err)
}

// Verify checks the chain of the log of the caller's tenant.
func (p *Plane) Verify(ctx context.Context) (eventlog.Report, error) {
	who, err := p.Look(ctx, ops.AuditVerify, "")
	if err != nil {
		return eventlog.Report{}, err
	}
	report, err := p.cfg.Log.Verify(ctx, who.Tenant)
	return report, core.Named(ops.AuditVerify, err)
}
