package sessions

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Acquire makes the caller a holder of the sandbox of a session, which is made,
// woken or rebuilt if need be. A holder is added once: acquiring again counts as
// a heartbeat.
func (s *Service) Acquire(ctx context.Context, ref string, h sandbox.HolderRef) (out sandbox.Acquired, err error) {
	const op = ops.SessionAcquire
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	err = s.Do(ctx, op, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		row, err := s.find(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		held, err := s.acquire(ctx, row, h, who.Key)
		out = sandbox.Acquired{Epoch: held.Epoch, Role: string(held.Role), Sandbox: held.Box.ID, Receipt: held.Receipt}
		return err
	})
	return out, core.Named(op, err)
}

// acquire acquires the sandbox of a session for a holder, and records what the
// session got.
func (s *Service) acquire(ctx context.Context, row store.Session, h sandbox.HolderRef, subject string) (session.Held, error) {
	op := lease.Acquire{Kind: lease.Kind(cmp.Or(h.Kind, string(lease.Operator))), ID: h.ID, Subject: subject, Epoch: h.Epoch}
	if h.Epoch != 0 {
		l, err := leases{s, row.Tenant}.Load(ctx, row.Group)
		if err == nil && !l.Follows(h.Epoch) {
			err = s.fence(ctx, row, l, h.Epoch, ops.SessionAcquire)
		}
		if err != nil {
			return session.Held{}, err
		}
	}
	if err := s.admit(ctx, row, op); err != nil {
		return session.Held{}, err
	}
	env, err := s.environment(&row)
	if err != nil {
		return session.Held{}, err
	}
	spec := row.Spec
	spec.Env = env
	plan := session.Plan{Group: row.Group, Provider: row.Provider, Spec: spec}
	began := time.Now()
	held, err := s.manager(row).Acquire(ctx, plan, op, row.Prior)
	role := string(held.Role)
	if err != nil {
		role = "failed"
	}
	s.cfg.Observer.Acquired(role, time.Since(began))
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
		s.Report(ctx, err) // the sandbox is there all the same
	}
	return held, nil
}

// environment returns that of a session. Values that are not on this machine are
// an error: a sandbox without them would not be the one that was asked for.
func (s *Service) environment(row *store.Session) (map[string]string, error) {
	if len(row.Spec.Env) == 0 {
		return nil, nil
	}
	env, err := s.cfg.Environments.Get(sandbox.ID(row.ID))
	if err != nil {
		return nil, err
	}
	for name := range row.Spec.Env {
		if _, ok := env[name]; !ok {
			return nil, &sandbox.Error{
				Code: sandbox.CodeUnavailable, Subject: row.Name, Message: "this machine does not have the value of the session's environment variable " + name,
				Hint: "use the session where it was created",
			}
		}
	}
	return env, nil
}

// fence refuses what was meant for an earlier sandbox of a session.
func (s *Service) fence(ctx context.Context, row store.Session, l lease.Lease, epoch int64, op ops.Op) error {
	switch n := len(l.Failures); {
	case l.Serves() && l.Epoch == epoch:
		return nil
	case n > 0 && l.State == lease.Cold && l.Epoch == epoch: // what its turn was told
		return &l.Failures[n-1].Err
	}
	s.fact(ctx, row.Tenant, row.Name, l.Sandbox, eventlog.FenceRefused, epoch, op)
	return stale(row.Name, fmt.Sprintf("epoch %d is over: the session is %s, at epoch %d", epoch, l.State, l.Epoch))
}

func stale(name, why string) error {
	return &sandbox.Error{Code: sandbox.CodeStale, Subject: name, Message: why, Hint: "acquire the session again; its files may be older, and its processes are gone"}
}

// Heartbeat keeps a holder. A holder or an epoch that is not current any more is
// CodeStale: the caller acquires again.
func (s *Service) Heartbeat(ctx context.Context, ref string, h sandbox.HolderRef) error {
	const op = ops.SessionHeartbeat
	return s.onLease(ctx, op, ref, func(ctx context.Context, row store.Session) error {
		kind := lease.Kind(cmp.Or(h.Kind, string(lease.Operator)))
		all := leases{s, row.Tenant}
		l, effect, err := all.Apply(ctx, row.Group, lease.Heartbeat{Kind: kind, ID: h.ID, Epoch: h.Epoch})
		switch {
		case err != nil:
			return err
		case !effect.Done && kind == lease.Turn && l.Failure(h.ID) != nil:
			return l.Failure(h.ID)
		case !effect.Done:
			return stale(row.Name, fmt.Sprintf("the holder is not one of epoch %d any more: the session is %s, at epoch %d", h.Epoch, l.State, l.Epoch))
		case kind == lease.Turn: // the reaper counts the time of the others
			_, _, err = all.Apply(ctx, row.Group, lease.Meter{Epoch: l.Epoch})
		}
		return err
	})
}

// Release removes a holder. One that is not there is success.
func (s *Service) Release(ctx context.Context, ref string, h sandbox.HolderRef) error {
	return s.onLease(ctx, ops.SessionRelease, ref, func(ctx context.Context, row store.Session) error {
		op := lease.Release{Kind: lease.Kind(cmp.Or(h.Kind, string(lease.Operator))), ID: h.ID}
		_, _, err := leases{s, row.Tenant}.Apply(ctx, row.Group, op)
		return err
	})
}

// onLease does something to the lease of a session, guarded.
func (s *Service) onLease(ctx context.Context, op ops.Op, ref string, do func(context.Context, store.Session) error) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return core.Named(op, s.Do(ctx, op, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		row, err := s.find(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		return do(ctx, row)
	}))
}

// Save captures the sandbox of a session, which goes on. A session without a
// sandbox returns what was saved last. With an epoch that is not the present one
// it is CodeStale; see Route.
func (s *Service) Save(ctx context.Context, ref string, epoch int64, follow bool) (out sandbox.Saved, err error) {
	err = s.onLease(ctx, ops.SessionSave, ref, func(ctx context.Context, row store.Session) error {
		l, err := leases{s, row.Tenant}.Load(ctx, row.Group)
		if err == nil && epoch == 0 && l.State == lease.Cold {
			out, err = lastSaved(row, l)
			return err
		}
		if err != nil {
			return err
		}
		at, err := s.reach(ctx, row, epoch, follow)
		if err != nil {
			return err
		}
		defer at.Done()
		if l, err = (leases{s, row.Tenant}).Load(ctx, row.Group); err != nil {
			return err
		}
		e, err := sandbox.ParseEnvelope(l.Box)
		if err != nil {
			return err
		}
		b := s.boxes(row.Tenant, &row)
		b.held = true
		box := session.Box{ID: at.Sandbox, Provider: l.Provider, Binding: l.Binding}
		var saved sandbox.Envelope
		if len(row.Spec.Workspaces) == 0 && s.cfg.Providers.SnapshotPauses(ctx, l.Provider) {
			at.Done()
			saved, err = s.saveStill(ctx, row, box, at.Epoch, e)
		} else {
			saved, err = b.Capture(ctx, box, e)
		}
		if err != nil {
			return err
		}
		out = sandbox.Saved{Workspaces: saved.Workspaces, Archive: saved.Archive}
		return s.keep(ctx, row, b, at.Epoch, saved)
	})
	return out, err
}

func lastSaved(row store.Session, l lease.Lease) (sandbox.Saved, error) {
	if l.Archive == nil {
		return sandbox.Saved{}, &sandbox.Error{Code: sandbox.CodeConflict, Subject: row.Name, Message: "the session has no sandbox, and nothing was saved"}
	}
	e, err := sandbox.ParseEnvelope(l.Archive)
	return sandbox.Saved{Workspaces: e.Workspaces, Archive: e.Archive}, err
}

// keep stores what was captured as what the session is rebuilt from.
func (s *Service) keep(ctx context.Context, row store.Session, b boxes, epoch int64, saved sandbox.Envelope) error {
	saved.Box, saved.State = "", nil
	sealed, err := saved.Sealed()
	if err != nil {
		return err
	}
	data, err := json.Marshal(sealed)
	if err != nil {
		return err
	}
	_, effect, err := leases{s, row.Tenant}.Apply(ctx, row.Group, lease.Save{Epoch: epoch, Archive: data})
	switch {
	case err != nil:
		return err
	case !effect.Done:
		s.Report(ctx, b.Discard(ctx, sealed))
		return stale(row.Name, "the sandbox was replaced while it was being saved")
	case effect.Prior != nil:
		if prior, err := sandbox.ParseEnvelope(effect.Prior); err == nil {
			s.Report(ctx, b.Discard(ctx, prior))
		}
	}
	return nil
}

// Envelope returns what any daemon finds or rebuilds the sandbox of a session
// from.
func (s *Service) Envelope(ctx context.Context, ref string) (out sandbox.Envelope, err error) {
	err = s.onLease(ctx, ops.SessionEnvelope, ref, func(ctx context.Context, row store.Session) error {
		l, err := leases{s, row.Tenant}.Load(ctx, row.Group)
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
		e.Binding = s.boxes(row.Tenant, &row).present(ctx, e.Backend, e.Binding)
		out, err = e.Sealed()
		return err
	})
	return out, err
}

// Resume returns the session of an envelope: the one that has that sandbox, else
// a new one, which finds or rebuilds it.
func (s *Service) Resume(ctx context.Context, req sandbox.ResumeRequest) (out sandbox.Opened, err error) {
	const op = ops.SessionResume
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	row, err := s.fromEnvelope(ctx, who.Tenant, req)
	if err != nil {
		return out, core.Named(op, err)
	}
	var stored store.Session
	err = s.Do(ctx, op, guard.Subject{Subject: row.Name}, func(ctx context.Context) error {
		return s.Store.Update(ctx, func(tx *store.Tx) error {
			// Two callers with one envelope must not get two sessions for its sandbox.
			if _, err := tx.Tenants().Lock(ctx, who.Tenant); err != nil {
				return err
			}
			stored, out.Created, err = adopt(ctx, tx, row)
			return err
		})
	})
	if err == nil && !out.Created {
		err = s.boxes(who.Tenant, &stored).takeBack(ctx, *row.Prior)
	}
	if err != nil {
		return out, core.Named(op, err)
	}
	return s.opened(ctx, stored, out, req.Holder)
}

// fromEnvelope returns the record of a session that starts from an envelope,
// which anybody may have written: it can name nothing that its bearer could not
// ask for, and no files of the machine.
func (s *Service) fromEnvelope(ctx context.Context, tenant string, req sandbox.ResumeRequest) (store.Session, error) {
	data, err := json.Marshal(req.Envelope)
	if err != nil {
		return store.Session{}, err
	}
	e, err := sandbox.ParseEnvelope(data)
	if err != nil {
		return store.Session{}, err
	}
	b := s.boxes(tenant, nil)
	switch {
	case len(e.Spec.Mounts) > 0:
		return store.Session{}, &sandbox.Error{
			Code: sandbox.CodeDenied, Subject: "envelope", Message: "an envelope cannot show files of the machine to a sandbox", Hint: "create a session with those mounts",
		}
	case e.Box != "":
		err = core.FirstError(sandbox.ValidateName(e.Box), b.reachable(ctx, e))
	}
	// The archive of another installation is refused when it is needed: its sandbox
	// may be there.
	if _, other := b.elsewhere(e.Binding); err == nil && e.Archive != nil && (e.Box == "" || !other) {
		err = b.readable(ctx, *e.Archive)
	}
	if err != nil {
		return store.Session{}, err
	}
	spec := e.Spec
	spec.Provider = e.Backend
	row, _, err := newSession(tenant, sandbox.NewSession{Name: req.Name, Spec: spec})
	row.Prior = &e
	return row, err
}

// adopt records a session that starts from an envelope, unless another has its
// sandbox already.
func adopt(ctx context.Context, tx *store.Tx, row store.Session) (stored store.Session, created bool, err error) {
	if row.Prior.Box == "" {
		stored, err = tx.Sessions().Create(ctx, row)
		return stored, true, err
	}
	all, err := tx.Sessions().List(ctx, row.Tenant)
	if err != nil {
		return stored, false, err
	}
	for _, other := range all {
		l, err := tx.Sessions().Lease(ctx, row.Tenant, other.Group)
		if err != nil {
			return stored, false, err
		}
		fresh := l.Box == nil && l.Archive == nil && other.Prior != nil && other.Prior.Box == row.Prior.Box
		if fresh || string(l.Sandbox) == row.Prior.Box {
			return other, false, nil
		}
	}
	stored, err = tx.Sessions().Create(ctx, row)
	return stored, true, err
}
