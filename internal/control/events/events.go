// Package events provides access to the event log: it reads, follows, exports,
// verifies and prunes the logs of tenants.
package events

import (
	"context"
	"io"
	"iter"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// WriteOTLP writes records in the JSON form of OpenTelemetry's protocol.
type WriteOTLP func(w io.Writer, page []eventlog.Record) error

// Service provides access to the log. It is safe for concurrent use.
type Service struct {
	*core.Core
	log  *eventlog.Log
	otlp WriteOTLP
}

// New returns the service for a log, which its owner closes after the Core. If
// otlp is nil, ExportOTLP returns CodeUnsupported.
func New(c *core.Core, log *eventlog.Log, otlp WriteOTLP) *Service { return &Service{c, log, otlp} }

// mayRead authorises a query and converts it to a filter.
func (s *Service) mayRead(ctx context.Context, op ops.Op, q *sandbox.EventQuery) (who key.Principal, f eventlog.Filter, err error) {
	f = eventlog.Filter{Since: q.Since, Until: q.Until, Ops: q.Ops, Types: q.Types, Sandbox: q.Sandbox}
	if who, err = s.Look(ctx, op, ""); err == nil {
		err = core.Named(op, f.Validate())
	}
	return who, f, err
}

// Events returns a page of the log of the caller's tenant, in order.
func (s *Service) Events(ctx context.Context, q sandbox.EventQuery) ([]sandbox.Event, error) {
	const op = ops.EventList
	who, f, err := s.mayRead(ctx, op, &q)
	if err != nil {
		return nil, err
	}
	found, err := s.log.Read(ctx, who.Tenant, f, q.After, q.Page)
	out := make([]sandbox.Event, len(found))
	for i := range found {
		out[i] = found[i].Event
	}
	return out, core.Named(op, err)
}

// FollowEvents yields matching events of the caller's tenant, and waits for
// more until ctx ends or the end time of the query.
func (s *Service) FollowEvents(ctx context.Context, q sandbox.EventQuery) (iter.Seq2[sandbox.Event, error], error) {
	who, f, err := s.mayRead(ctx, ops.EventFollow, &q)
	if err != nil {
		return nil, err
	}
	return func(yield func(sandbox.Event, error) bool) {
		for e, err := range s.log.Follow(ctx, who.Tenant, f, q.After) {
			if !yield(e.Event, err) {
				return
			}
		}
	}, nil
}

// ExportEvents writes matching events of the caller's tenant as JSON lines,
// each with the hash of its record.
func (s *Service) ExportEvents(ctx context.Context, q sandbox.EventQuery, w io.Writer) error {
	const op = ops.EventList
	who, f, err := s.mayRead(ctx, op, &q)
	if err != nil {
		return err
	}
	return core.Named(op, s.log.Export(ctx, who.Tenant, f, w))
}

// otlpBatch is the maximum number of events per line of OTLP.
const otlpBatch = 500

// ExportOTLP writes matching events of the caller's tenant in the OTLP JSON
// file format, which OpenTelemetry collectors can read.
func (s *Service) ExportOTLP(ctx context.Context, q sandbox.EventQuery, w io.Writer) error {
	const op = ops.EventList
	who, f, err := s.mayRead(ctx, op, &q)
	if err != nil {
		return err
	}
	if s.otlp == nil {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: string(op), Message: "this daemon cannot write OTLP"}
	}
	for after := q.After; ; {
		page, err := s.log.Records(ctx, who.Tenant, f, after, otlpBatch)
		if err != nil || len(page) == 0 {
			return core.Named(op, err)
		}
		if err := s.otlp(w, page); err != nil {
			return err
		}
		after = page[len(page)-1].Seq
	}
}

// VerifyAudit checks the hash chain of the log of the caller's tenant.
func (s *Service) VerifyAudit(ctx context.Context) (operator.AuditReport, error) {
	const op = ops.AuditVerify
	who, err := s.Look(ctx, op, "")
	if err != nil {
		return operator.AuditReport{}, err
	}
	r, err := s.log.Verify(ctx, who.Tenant)
	out := operator.AuditReport{
		Records: r.Records, Anchored: r.Anchored, Sound: err == nil && r.Fault == nil, Pruned: r.Pruned, PrunedAt: r.PrunedAt,
	}
	if r.Fault != nil {
		out.Fault, out.FaultSeq = string(r.Fault.Kind)+": "+r.Fault.Detail, r.Fault.Seq
	}
	return out, core.Named(op, err)
}
