package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// linger is how long the daemon holds the sandbox of a session after the last
// request, so that a series of requests needs one holder, unless the sandbox is
// kept without holders for less.
const linger = 10 * time.Second

// Routed is the sandbox that serves a request for a session. It is held until
// Done is called. Call Done exactly once. The request must end when Over does,
// because what it changes later would be lost; the cause is the error for it.
type Routed struct {
	Session string // its id
	Sandbox sandbox.ID
	Epoch   int64
	Done    func()
	Over    context.Context
}

// maxFollows limits how often one request follows a moving session.
const maxFollows = 3

// Route returns the sandbox that serves a session now, and acquires it if
// necessary. It waits while the session is being moved. If the epoch is not the
// present one, the error is CodeStale; with follow, only if the files of that
// epoch were not carried over.
func (s *Holders) Route(ctx context.Context, ref string, epoch int64, follow bool) (Routed, error) {
	const op = ops.SessionRoute
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return Routed{}, err
	}
	r, err := s.reach(ctx, who.Tenant, ref, epoch, follow)
	return r, core.Named(op, err)
}

// Watch is Route for somebody who only watches the sandbox of an epoch, and asks
// again and again: it holds the sandbox for a while, but makes none. If the
// sandbox was replaced, the error is CodeStale. One that has ended is no error.
func (s *Holders) Watch(ctx context.Context, ref string, epoch int64) (err error) {
	const op = ops.SessionRoute
	defer core.Name(op, &err)
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return err
	}
	row, l, sb, err := s.pointer(ctx, who.Tenant, ref)
	switch {
	case err != nil:
		return err
	case l.Epoch != epoch:
		return stale(row.Name, "the sandbox was replaced")
	case !l.Serves() || sb.State != sandbox.Running:
		return nil
	}
	r, err := s.reach(ctx, who.Tenant, ref, epoch, false)
	if err == nil {
		r.Done()
	}
	return err
}

// Serving returns the sandbox that serves a session now, for somebody who only
// watches: it makes none. If none serves, the error is CodeUnavailable.
func (s *Holders) Serving(ctx context.Context, ref string) (id sandbox.ID, epoch int64, err error) {
	const op = ops.SessionRoute
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return "", 0, err
	}
	row, l, sb, err := s.pointer(ctx, who.Tenant, ref)
	if err == nil && (!l.Serves() || sb.State != sandbox.Running || s.leases.moving(l) || s.present.opening(place{row.Tenant, row.Group}) != nil) {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: row.Name, Message: "no sandbox serves the session now", Hint: "try again"}
	}
	return l.Sandbox, l.Epoch, core.Named(op, err)
}

// errMoving means that the session is being moved and the pointer must be read again.
var errMoving = errors.New("the session is being moved")

// reach is Route for a session. Each attempt reads the pointer again.
func (s *Holders) reach(ctx context.Context, tenant, ref string, epoch int64, follow bool) (Routed, error) {
	deadline := time.Now().Add(s.patience)
	for follows := 0; ; {
		row, l, sb, err := s.pointer(ctx, tenant, ref)
		if err != nil {
			return Routed{}, err
		}
		r, err := s.reachOnce(ctx, row, l, sb, epoch, follow)
		switch {
		case errors.Is(err, errMoving):
			if err := s.passable(ctx, row, deadline); err != nil {
				return Routed{}, err
			}
		case sandbox.CodeOf(err) == sandbox.CodeStale && follow && l.Epoch != epoch && l.Follows(epoch) && follows < maxFollows:
			follows++
			epoch = l.Epoch
		default:
			return r, err
		}
	}
}

// lookAgain is the interval at which a request checks whether another daemon
// has moved its session.
const lookAgain = 50 * time.Millisecond

// passable waits until this daemon is not moving the session.
func (s *Holders) passable(ctx context.Context, row store.Session, deadline time.Time) error {
	wait := s.present.opening(place{row.Tenant, row.Group})
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	if wait == nil { // another daemon is moving it
		again := time.NewTimer(lookAgain)
		defer again.Stop()
		select {
		case <-again.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	} else {
		select {
		case <-wait:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: row.Name, Message: "the session is being moved to another sandbox", Hint: "try again"}
}

// pointer reads a session, its lease, and the sandbox that it names, if any.
func (s *Holders) pointer(ctx context.Context, tenant, ref string) (row store.Session, l lease.Lease, sb store.Sandbox, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) (err error) {
		sb = store.Sandbox{}
		if row, err = present(ctx, tx, tenant, ref); err != nil {
			return err
		}
		if l, err = tx.Sessions().Lease(ctx, tenant, row.Group); err != nil || l.Sandbox == "" {
			return err
		}
		sb, err = tx.Sandboxes().Get(ctx, tenant, l.Sandbox)
		return ignore(err, sandbox.CodeNotFound)
	})
	return row, l, sb, err
}

// reachOnce uses the sandbox of a session, or acquires one.
func (s *Holders) reachOnce(ctx context.Context, row store.Session, l lease.Lease, sb store.Sandbox, epoch int64, follow bool) (Routed, error) {
	at := place{row.Tenant, row.Group}
	if s.leases.moving(l) || s.present.opening(at) != nil {
		return Routed{}, errMoving
	}
	if epoch != 0 {
		if follow && epoch != l.Epoch && l.Follows(epoch) && l.State == lease.Warm {
			return Routed{}, stale(row.Name, "the session was moved") // the caller follows it
		}
		if err := s.leases.fence(ctx, row, l, epoch, ops.SessionRoute); err != nil {
			return Routed{}, err
		}
	}
	if l.State == lease.Warm && sb.State == sandbox.Running {
		if u, ok := s.present.join(at, l); ok {
			return s.joined(ctx, row, l, u)
		}
	}
	if l.Serves() && sb.State == sandbox.Running && !mayHold(ctx) {
		return Routed{row.ID, l.Sandbox, l.Epoch, func() {}, context.Background()}, nil // as long as others hold it
	}
	return s.hold(ctx, row, at, epoch)
}

// joined reads a lease again that a request has just joined. An eviction that
// began in between does not wait for the request.
func (s *Holders) joined(ctx context.Context, row store.Session, l lease.Lease, u use) (Routed, error) {
	now, err := s.leases.of(row.Tenant).Load(ctx, row.Group)
	if err == nil && (now.State != lease.Warm || now.Epoch != l.Epoch) {
		err = errMoving
	}
	if err != nil {
		u.done()
		return Routed{}, err
	}
	return Routed{row.ID, l.Sandbox, l.Epoch, u.done, u.over}, nil
}

// mayHold reports whether the caller may hold a sandbox. Callers that may only
// read use it while others hold it.
func mayHold(ctx context.Context) bool {
	who, err := guard.Principal(ctx)
	return err == nil && who.Allow(ops.SessionAcquire) == nil
}

// hold acquires the sandbox of a session for this daemon.
func (s *Holders) hold(ctx context.Context, row store.Session, at place, epoch int64) (Routed, error) {
	id := s.present.holderID()
	var out Routed
	err := s.Do(ctx, ops.SessionAcquire, guard.Subject{Subject: row.Name}, func(ctx context.Context) error {
		held, err := s.acquire(ctx, row, durable.HolderRef{Kind: string(lease.Operator), ID: id}, "")
		if err != nil {
			return err
		}
		u, ok := s.present.begin(at, id, held.Epoch)
		if l, err := s.leases.of(row.Tenant).Load(ctx, row.Group); err != nil || !ok || s.leases.moving(l) {
			if ok {
				u.done()
			}
			_, _, relErr := s.leases.of(row.Tenant).Apply(context.WithoutCancel(ctx), row.Group, lease.Release{Kind: lease.Operator, ID: id})
			return core.FirstError(err, relErr, errMoving)
		}
		out = Routed{row.ID, held.Sandbox.ID, held.Epoch, u.done, u.over}
		if epoch != 0 && held.Epoch != epoch {
			out.Done()
			return stale(row.Name, "the sandbox was replaced")
		}
		return nil
	})
	return out, err
}
