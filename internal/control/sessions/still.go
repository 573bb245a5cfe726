package sessions

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// saveStill captures a sandbox that its provider pauses meanwhile. Requests that
// are under way end first. Others wait, so that none meets the paused sandbox.
func (s *Service) saveStill(ctx context.Context, row store.Session, box session.Box, epoch int64, e sandbox.Envelope) (saved sandbox.Envelope, err error) {
	move, open, err := s.present.shut(ctx, place{row.Tenant, row.Group})
	if err != nil {
		return e, err
	}
	defer open()
	self := s.holderID()
	held, err := s.acquire(ctx, row, sandbox.HolderRef{Kind: string(lease.Operator), ID: self}, "")
	if err != nil {
		return e, err
	}
	defer s.letGo(ctx, row, self)
	if held.Epoch != epoch {
		return e, stale(row.Name, "the sandbox was replaced before it was saved")
	}
	b := s.boxes(row.Tenant, &row)
	beat := lease.Heartbeat{Kind: lease.Operator, ID: self, Epoch: epoch}
	err = s.manager(row).Exclusive(ctx, row.Group, epoch, beat, mover{b, move}.Quiet, func(ctx context.Context) (err error) {
		b.held = true
		saved, err = b.Capture(ctx, box, e)
		return err
	})
	return saved, err
}

// letGo releases a holder of this daemon.
func (s *Service) letGo(ctx context.Context, row store.Session, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_, _, err := leases{s, row.Tenant}.Apply(ctx, row.Group, lease.Release{Kind: lease.Operator, ID: id})
	s.Report(ctx, err)
}
