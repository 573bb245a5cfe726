package plane

import (
	"context"
	"io"
	"iter"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
)

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
