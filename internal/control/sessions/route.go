package sessions

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// linger is how long the daemon keeps the sandbox of a session after the last
// request for it, so that a series of requests is not one of holders.
const linger = 10 * time.Second

// Routed is the sandbox that a request for a session goes to. The sandbox is
// kept until Done is called, once.
type Routed struct {
	Sandbox sandbox.ID
	Epoch   int64
	Done    func()
}

// maxFollows bounds how often one request follows a session that moves.
const maxFollows = 3

// Route returns the sandbox that serves a session now, and acquires it if need
// be. It waits while the session moves. With an epoch that is not the present one
// it is CodeStale, and nothing is done; with follow, only if the files of that
// epoch did not go along.
func (s *Service) Route(ctx context.Context, ref string, epoch int64, follow bool) (Routed, error) {
	const op = ops.SessionRoute
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return Routed{}, err
	}
	row, err := s.find(ctx, who.Tenant, ref)
	if err != nil {
		return Routed{}, core.Named(op, err)
	}
	r, err := s.reach(ctx, row, epoch, follow)
	return r, core.Named(op, err)
}

// errMoving says that the session moves: the pointer is to be read again.
var errMoving = errors.New("the session is being moved")

// reach is Route for a session. Each attempt reads the pointer again.
func (s *Service) reach(ctx context.Context, row store.Session, epoch int64, follow bool) (Routed, error) {
	deadline := time.Now().Add(s.cfg.Lease.Warming)
	for follows := 0; ; {
		r, l, err := s.reachOnce(ctx, row, epoch, follow)
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

// lookAgain is how often a request looks whether another daemon has moved its
// session.
const lookAgain = 50 * time.Millisecond

// passable waits until a session does not move, as far as this daemon knows.
func (s *Service) passable(ctx context.Context, row store.Session, deadline time.Time) error {
	wait := s.present.opening(place{row.Tenant, row.Group})
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	if wait == nil { // another daemon moves it
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

// reachOnce reads the pointer and uses the sandbox that it names, or acquires one.
func (s *Service) reachOnce(ctx context.Context, row store.Session, epoch int64, follow bool) (_ Routed, l lease.Lease, err error) {
	var box store.Sandbox
	err = s.Store.View(ctx, func(tx *store.Tx) (err error) {
		if l, err = tx.Sessions().Lease(ctx, row.Tenant, row.Group); err != nil || l.Sandbox == "" {
			return err
		}
		box, err = tx.Sandboxes().Get(ctx, row.Tenant, l.Sandbox)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = nil
		}
		return err
	})
	at := place{row.Tenant, row.Group}
	switch {
	case err != nil:
		return Routed{}, l, err
	case s.moving(l) || s.present.opening(at) != nil:
		return Routed{}, l, errMoving
	}
	if epoch != 0 {
		if follow && epoch != l.Epoch && l.Follows(epoch) && l.State == lease.Warm {
			return Routed{}, l, stale(row.Name, "the session was moved") // and the caller follows it
		}
		if err := s.fence(ctx, row, l, epoch, ops.SessionRoute); err != nil {
			return Routed{}, l, err
		}
	}
	if l.State == lease.Warm && box.State == sandbox.Running {
		if done, ok := s.present.join(s, at, l); ok {
			return Routed{l.Sandbox, l.Epoch, done}, l, nil
		}
	}
	if l.Serves() && box.State == sandbox.Running && !mayHold(ctx) {
		return Routed{l.Sandbox, l.Epoch, func() {}}, l, nil // as long as others hold it
	}
	r, err := s.hold(ctx, row, at, epoch)
	return r, l, err
}

// moving reports that a lease moves, by whichever daemon.
func (s *Service) moving(l lease.Lease) bool { return s.Store.Now().Before(l.Moving) }

// mayHold reports whether the caller may keep a sandbox from being ended. Who may
// only read uses it while it is there.
func mayHold(ctx context.Context) bool {
	who, err := guard.Principal(ctx)
	return err == nil && who.Allow(ops.SessionAcquire) == nil
}

// hold acquires the sandbox of a session for this daemon.
func (s *Service) hold(ctx context.Context, row store.Session, at place, epoch int64) (Routed, error) {
	id := s.holderID()
	var out Routed
	err := s.Do(ctx, ops.SessionAcquire, guard.Subject{Subject: row.Name}, func(ctx context.Context) error {
		held, err := s.acquire(ctx, row, sandbox.HolderRef{Kind: string(lease.Operator), ID: id}, "")
		if err != nil {
			return err
		}
		done, ok := s.present.begin(s, at, id, held.Epoch)
		if l, err := (leases{s, row.Tenant}).Load(ctx, row.Group); err != nil || !ok || s.moving(l) {
			if ok {
				done()
			}
			_, _, relErr := leases{s, row.Tenant}.Apply(context.WithoutCancel(ctx), row.Group, lease.Release{Kind: lease.Operator, ID: id})
			return core.FirstError(err, relErr, errMoving)
		}
		out = Routed{held.Box.ID, held.Epoch, done}
		if epoch != 0 && held.Epoch != epoch {
			out.Done()
			return stale(row.Name, "the sandbox was replaced")
		}
		return nil
	})
	return out, err
}

// holderID makes the id of a holder of this daemon.
func (s *Service) holderID() string { return newID(daemonHolder + s.Node + "-") }

// daemonHolder begins the ids of holders that are daemons.
const daemonHolder = "daemon-"

type place struct{ tenant, group string }

// presences are the holders of this daemon, for the requests it serves. The zero
// value is ready.
type presences struct {
	mu    sync.Mutex
	all   map[*presence]bool
	main  map[place]*presence
	moves map[place]*movement // places whose sandbox nobody may begin to use
}

// presence is one holder.
type presence struct {
	at    place
	id    string
	epoch int64
	uses  int
	timer *time.Timer // releases it; nil while it is used
}

// begin adds a holder that was acquired. done ends its first use. It is not ok if
// the session moves.
func (p *presences) begin(s *Service, at place, id string, epoch int64) (done func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moves[at] != nil {
		return nil, false
	}
	if p.all == nil {
		p.all, p.main = map[*presence]bool{}, map[place]*presence{}
	}
	h := &presence{at: at, id: id, epoch: epoch, uses: 1}
	p.all[h], p.main[at] = true, h
	return p.doneOf(s, h), true
}

// join uses the holder that the daemon has of a lease, if it has one.
func (p *presences) join(s *Service, at place, l lease.Lease) (done func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.main[at]
	if h == nil || p.moves[at] != nil || h.epoch != l.Epoch || !l.Holds(lease.Operator, h.id) {
		return nil, false
	}
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	h.uses++
	return p.doneOf(s, h), true
}

func (p *presences) doneOf(s *Service, h *presence) func() {
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if h.uses--; h.uses > 0 {
			return
		}
		if m := p.moves[h.at]; m != nil {
			m.ended()
		}
		wait := linger
		if p.main[h.at] != h {
			wait = 0
		}
		h.timer = time.AfterFunc(wait, func() { p.release(s, h) })
	})
}

// release gives a holder back, unless it is used again.
func (p *presences) release(s *Service, h *presence) {
	p.mu.Lock()
	unused := h.uses == 0 && p.all[h]
	if unused {
		delete(p.all, h)
		if p.main[h.at] == h {
			delete(p.main, h.at)
		}
	}
	p.mu.Unlock()
	if !unused || s.Life.Err() != nil {
		return
	}
	_, _, err := leases{s, h.at.tenant}.Apply(s.Life, h.at.group, lease.Release{Kind: lease.Operator, ID: h.id})
	s.Report(s.Life, err)
}

// beat keeps the holders of this daemon.
func (p *presences) beat(ctx context.Context, s *Service) {
	p.mu.Lock()
	all := make([]*presence, 0, len(p.all))
	for h := range p.all {
		all = append(all, h)
	}
	p.mu.Unlock()
	for _, h := range all {
		op := lease.Heartbeat{Kind: lease.Operator, ID: h.id, Epoch: h.epoch}
		_, _, err := leases{s, h.at.tenant}.Apply(ctx, h.at.group, op)
		s.Report(ctx, err)
	}
}
