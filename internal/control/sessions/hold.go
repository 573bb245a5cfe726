package sessions

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// Holders acquires, releases and saves the sandboxes of sessions.
type Holders struct {
	*records
	leases    *leases
	provision *provision
	present   *presences
	providers Providers
	patience  time.Duration // how long to wait for another caller that makes the sandbox
	observer  Observer
	turns     Turns
}

// turnHolds reports a turn whose desktop is recorded, or is not any more.
func (s *Holders) turnHolds(row store.Session, kind lease.Kind, id string, sb sandbox.ID, epoch int64) {
	switch {
	case kind != lease.Turn:
	case row.Record == viewing.RecordOnTurn:
		s.turns.TurnHolds(row, id, sb, epoch)
	default:
		s.turns.TurnOver(row, id)
	}
}

// Acquire makes the caller a holder of a session's sandbox. If necessary, the
// sandbox is made, resumed or rebuilt. A holder is added once: acquiring again
// counts as a heartbeat.
func (s *Holders) Acquire(ctx context.Context, ref string, h durable.HolderRef) (out durable.Acquired, err error) {
	err = s.onSession(ctx, ops.SessionAcquire, ref, func(ctx context.Context, who key.Principal, row store.Session) error {
		held, err := s.acquire(ctx, row, h, who.Key)
		out = durable.Acquired{Epoch: held.Epoch, Role: string(held.Role), Sandbox: held.Sandbox.ID, Receipt: held.Receipt}
		return err
	})
	return out, err
}

// acquire acquires the sandbox of a session for a holder, and records the
// result.
func (s *Holders) acquire(ctx context.Context, row store.Session, h durable.HolderRef, subject string) (session.Held, error) {
	op := lease.Acquire{Kind: lease.Kind(cmp.Or(h.Kind, string(lease.Operator))), ID: h.ID, Subject: subject, Epoch: h.Epoch}
	if h.Epoch != 0 {
		l, err := s.leases.of(row.Tenant).Load(ctx, row.Group)
		if err == nil && !l.Follows(h.Epoch) {
			err = s.leases.fence(ctx, row, l, h.Epoch, ops.SessionAcquire)
		}
		if err != nil {
			return session.Held{}, err
		}
	}
	if err := s.leases.admit(ctx, row, op); err != nil {
		return session.Held{}, err
	}
	if row.Group != row.ID { // an earlier version let sessions with other images join
		op.Image = row.Spec.Image
	}
	env, err := s.environment(&row)
	if err != nil {
		return session.Held{}, err
	}
	spec := row.Spec
	spec.Env = env
	plan := session.Plan{Group: row.Group, Provider: row.Provider, Spec: spec}
	began := time.Now()
	held, err := s.managerWith(row, s.waiting(ctx, row)).Acquire(ctx, plan, op, row.Prior)
	role := string(held.Role)
	if err != nil {
		role = "failed"
	}
	s.observer.Acquired(role, time.Since(began))
	if err != nil {
		return held, err
	}
	if h.Epoch != 0 && h.Epoch != held.Epoch && row.Receipt != nil && row.Receipt.Epoch == held.Epoch {
		held.Receipt = *row.Receipt // it followed the session to another sandbox
	}
	held.Receipt.Time = s.Store.Now()
	if held.Role == lease.Spawner || row.Receipt == nil {
		_, err := s.change(context.WithoutCancel(ctx), row, func(row *store.Session) error {
			row.Receipt = &held.Receipt
			return nil
		})
		s.Report(ctx, err) // the sandbox exists anyway
	}
	s.turnHolds(row, op.Kind, op.ID, held.Sandbox.ID, held.Epoch)
	return held, nil
}

// Heartbeat keeps a holder alive. If the holder or epoch is not current any
// more, the error is CodeStale: the caller acquires again.
func (s *Holders) Heartbeat(ctx context.Context, ref string, h durable.HolderRef) error {
	const op = ops.SessionHeartbeat
	return s.onSession(ctx, op, ref, func(ctx context.Context, _ key.Principal, row store.Session) error {
		kind := lease.Kind(cmp.Or(h.Kind, string(lease.Operator)))
		all := s.leases.of(row.Tenant)
		l, effect, err := all.Apply(ctx, row.Group, lease.Heartbeat{Kind: kind, ID: h.ID, Epoch: h.Epoch})
		switch {
		case err != nil:
			return err
		case !effect.Done && kind == lease.Turn && l.Failure(h.ID) != nil:
			return l.Failure(h.ID)
		case !effect.Done:
			return stale(row.Name, fmt.Sprintf("the holder no longer belongs to epoch %d: the session is %s, at epoch %d", h.Epoch, l.State, l.Epoch))
		case kind == lease.Turn: // the reaper counts the time of the others
			s.turnHolds(row, kind, h.ID, l.Sandbox, l.Epoch)
			_, _, err = all.Apply(ctx, row.Group, lease.Meter{Epoch: l.Epoch})
		}
		return err
	})
}

// Release removes a holder. A missing holder is success.
func (s *Holders) Release(ctx context.Context, ref string, h durable.HolderRef) error {
	return s.onSession(ctx, ops.SessionRelease, ref, func(ctx context.Context, _ key.Principal, row store.Session) error {
		op := lease.Release{Kind: lease.Kind(cmp.Or(h.Kind, string(lease.Operator))), ID: h.ID}
		_, _, err := s.leases.of(row.Tenant).Apply(ctx, row.Group, op)
		if err == nil && op.Kind == lease.Turn {
			s.turns.TurnOver(row, op.ID)
		}
		return err
	})
}

// Envelope returns an envelope, with which any daemon finds or rebuilds the
// sandbox of a session.
func (s *Holders) Envelope(ctx context.Context, ref string) (out durable.Envelope, err error) {
	err = s.onSession(ctx, ops.SessionEnvelope, ref, func(ctx context.Context, _ key.Principal, row store.Session) error {
		l, err := s.leases.of(row.Tenant).Load(ctx, row.Group)
		if err != nil {
			return err
		}
		e, err := session.Known(l, row.Prior)
		if err != nil {
			return err
		}
		if e == nil {
			return &sandbox.Error{
				Code: sandbox.CodeConflict, Subject: row.Name, Message: "the session has neither a sandbox nor anything saved",
				Hint: "use it first, for example with: atoll session exec " + row.Name + " -- true",
			}
		}
		e.Spec = row.Spec
		e.Spec.Labels = row.Labels
		e.Binding = s.provision.sandboxesOf(row.Tenant, &row).present(ctx, e.Backend, e.Binding)
		out = e.Sealed()
		return nil
	})
	return out, err
}

// manager returns the manager that acquires and drains the sandboxes of a session.
func (s *Holders) manager(row store.Session) *session.Manager { return s.managerWith(row, nil) }

// waiting returns a function that records what an Acquire waits for, once each.
func (s *Holders) waiting(ctx context.Context, row store.Session) func(group, what string) {
	last := ""
	return func(_, what string) {
		if what == last {
			return
		}
		last = what
		l, err := s.leases.of(row.Tenant).Load(ctx, row.Group)
		if err == nil {
			s.leases.fact(ctx, row.Tenant, row.Name, l.Sandbox, eventlog.LeaseWaiting, l.Epoch, ops.SessionAcquire)
		}
	}
}

func (s *Holders) managerWith(row store.Session, progress func(group, what string)) *session.Manager {
	return session.NewManager(session.Config{
		Progress: progress, Spawner: s.present.daemon(),
		Leases: s.leases.of(row.Tenant), Sandboxes: s.provision.sandboxesOf(row.Tenant, &row), PauseOnExit: row.PauseOnExit, Patience: s.patience, Now: s.Store.Now,
		Busy: func(ctx context.Context, _ lease.Lease) bool {
			busy, err := s.present.busy(ctx, place{row.Tenant, row.Group})
			s.Report(ctx, err)
			return busy
		},
		Cut: func(l lease.Lease) {
			s.present.cut(place{row.Tenant, row.Group}, stale(row.Name, "the sandbox was replaced while the request was under way"))
		},
		Alert: func(ctx context.Context, l lease.Lease, err error) {
			s.Report(ctx, err)
			s.leases.fact(ctx, row.Tenant, row.Name, l.Sandbox, eventlog.LeaseAtRisk, l.Epoch, ops.SessionSave)
		},
	})
}
