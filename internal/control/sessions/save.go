package sessions

import (
	"context"
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Save captures the sandbox of a session, which continues to run. Without a
// sandbox, it returns the last archive. If the epoch is not the present one,
// the error is CodeStale; see Route.
func (s *Holders) Save(ctx context.Context, ref string, epoch int64, follow bool) (out durable.Saved, err error) {
	err = s.onSession(ctx, ops.SessionSave, ref, func(ctx context.Context, _ key.Principal, row store.Session) error {
		l, err := s.leases.of(row.Tenant).Load(ctx, row.Group)
		if err == nil && epoch == 0 && l.State == lease.Cold {
			out, err = lastSaved(row, l)
			return err
		}
		if err != nil {
			return err
		}
		at, err := s.reach(ctx, row.Tenant, row.ID, epoch, follow)
		if err != nil {
			return err
		}
		defer at.Done()
		if l, err = s.leases.of(row.Tenant).Load(ctx, row.Group); err != nil {
			return err
		}
		e, err := durable.ParseEnvelope(l.Ref)
		if err != nil {
			return err
		}
		b := s.provision.sandboxesOf(row.Tenant, &row)
		b.held = true
		sb := session.Sandbox{ID: at.Sandbox, Provider: l.Provider, Binding: l.Binding}
		var saved durable.Envelope
		if len(row.Spec.Workspaces) == 0 && s.providers.SnapshotPauses(ctx, l.Provider) {
			at.Done()
			saved, err = s.saveStill(ctx, row, sb, at.Epoch, e)
		} else {
			saved, err = b.Capture(ctx, sb, e)
		}
		if err != nil {
			return err
		}
		out = durable.Saved{Workspaces: saved.Workspaces, Archive: saved.Archive}
		return s.keep(ctx, row, b, at.Epoch, saved)
	})
	return out, err
}

func lastSaved(row store.Session, l lease.Lease) (durable.Saved, error) {
	if l.Archive == nil {
		return durable.Saved{}, &sandbox.Error{Code: sandbox.CodeConflict, Subject: row.Name, Message: "the session has no sandbox, and nothing was saved"}
	}
	e, err := durable.ParseEnvelope(l.Archive)
	return durable.Saved{Workspaces: e.Workspaces, Archive: e.Archive}, err
}

// keep stores a capture, so that the session can be rebuilt from it.
func (s *Holders) keep(ctx context.Context, row store.Session, b tenantSandboxes, epoch int64, saved durable.Envelope) error {
	saved.Sandbox, saved.State = "", nil
	sealed := saved.Sealed()
	data, err := json.Marshal(sealed)
	if err != nil {
		return err
	}
	_, effect, err := s.leases.of(row.Tenant).Apply(ctx, row.Group, lease.Save{Epoch: epoch, Archive: data})
	switch {
	case err != nil:
		s.Report(ctx, b.Discard(context.WithoutCancel(ctx), sealed)) // stays if it was stored anyway
		return err
	case !effect.Done:
		s.Report(ctx, b.Discard(ctx, sealed))
		return stale(row.Name, "the sandbox was replaced while it was being saved")
	case effect.Prior != nil:
		if prior, err := durable.ParseEnvelope(effect.Prior); err == nil {
			s.Report(ctx, b.Discard(ctx, prior))
		}
	}
	return nil
}

// saveStill captures a sandbox that its provider pauses meanwhile. It waits for
// requests in progress; new ones wait, so that none reaches the paused sandbox.
func (s *Holders) saveStill(ctx context.Context, row store.Session, sb session.Sandbox, epoch int64, e durable.Envelope) (saved durable.Envelope, err error) {
	move, open, err := s.present.shut(ctx, place{row.Tenant, row.Group})
	if err != nil {
		return e, err
	}
	defer open()
	self := s.present.holderID()
	held, err := s.acquire(ctx, row, durable.HolderRef{Kind: string(lease.Operator), ID: self}, "")
	if err != nil {
		return e, err
	}
	defer s.letGo(ctx, row, self)
	if held.Epoch != epoch {
		return e, stale(row.Name, "the sandbox was replaced before it was saved")
	}
	b := s.provision.sandboxesOf(row.Tenant, &row)
	beat := lease.Heartbeat{Kind: lease.Operator, ID: self, Epoch: epoch}
	err = s.manager(row).Exclusive(ctx, row.Group, epoch, beat, mover{tenantSandboxes: b, move: move, present: s.present}.Quiet, func(ctx context.Context) (err error) {
		b.held = true
		saved, err = b.Capture(ctx, sb, e)
		return err
	})
	return saved, err
}

// letGo releases a holder of this daemon.
func (s *Holders) letGo(ctx context.Context, row store.Session, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_, _, err := s.leases.of(row.Tenant).Apply(ctx, row.Group, lease.Release{Kind: lease.Operator, ID: id})
	s.Report(ctx, err)
}
