package sessions

import (
	"context"
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

// Route returns the sandbox that serves a session now, and acquires it if need
// be. With an epoch that is not the present one it is CodeStale, and nothing is
// done.
func (s *Service) Route(ctx context.Context, ref string, epoch int64) (Routed, error) {
	const op = ops.SessionRoute
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return Routed{}, err
	}
	row, err := s.find(ctx, who.Tenant, ref)
	if err != nil {
		return Routed{}, core.Named(op, err)
	}
	r, err := s.reach(ctx, row, epoch)
	return r, core.Named(op, err)
}

// reach is Route for a session.
func (s *Service) reach(ctx context.Context, row store.Session, epoch int64) (Routed, error) {
	var l lease.Lease
	var box store.Sandbox
	err := s.Store.View(ctx, func(tx *store.Tx) (err error) {
		if l, err = tx.Sessions().Lease(ctx, row.Tenant, row.Group); err != nil || l.Sandbox == "" {
			return err
		}
		box, err = tx.Sandboxes().Get(ctx, row.Tenant, l.Sandbox)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = nil
		}
		return err
	})
	if err != nil {
		return Routed{}, err
	}
	if epoch != 0 {
		if err := s.fence(ctx, row, l, epoch, ops.SessionRoute); err != nil {
			return Routed{}, err
		}
	}
	at := place{row.Tenant, row.Group}
	if l.State == lease.Warm && box.State == sandbox.Running {
		if done, ok := s.present.join(s, at, l); ok {
			return Routed{l.Sandbox, l.Epoch, done}, nil
		}
	}
	if serves(l) && box.State == sandbox.Running && !mayHold(ctx) {
		return Routed{l.Sandbox, l.Epoch, func() {}}, nil // as long as others hold it
	}
	return s.hold(ctx, row, at, epoch)
}

// mayHold reports whether the caller may keep a sandbox from being ended. Who may
// only read uses it while it is there.
func mayHold(ctx context.Context) bool {
	who, err := guard.Principal(ctx)
	return err == nil && who.Allow(ops.SessionAcquire) == nil
}

// hold acquires the sandbox of a session for this daemon.
func (s *Service) hold(ctx context.Context, row store.Session, at place, epoch int64) (Routed, error) {
	id := newID("daemon-" + s.Node + "-")
	var out Routed
	err := s.Do(ctx, ops.SessionAcquire, guard.Subject{Subject: row.Name}, func(ctx context.Context) error {
		held, err := s.acquire(ctx, row, sandbox.HolderRef{Kind: string(lease.Operator), ID: id}, "")
		if err != nil {
			return err
		}
		out = Routed{held.Box.ID, held.Epoch, s.present.begin(s, at, id, held.Epoch)}
		if epoch != 0 && held.Epoch != epoch {
			out.Done()
			return stale(row.Name, "the sandbox was replaced")
		}
		return nil
	})
	return out, err
}

type place struct{ tenant, group string }

// presences are the holders of this daemon, for the requests it serves. The zero
// value is ready.
type presences struct {
	mu   sync.Mutex
	all  map[*presence]bool
	main map[place]*presence
}

// presence is one holder.
type presence struct {
	at    place
	id    string
	epoch int64
	uses  int
	timer *time.Timer // releases it; nil while it is used
}

// begin adds a holder that was acquired. done ends its first use.
func (p *presences) begin(s *Service, at place, id string, epoch int64) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all, p.main = map[*presence]bool{}, map[place]*presence{}
	}
	h := &presence{at: at, id: id, epoch: epoch, uses: 1}
	p.all[h], p.main[at] = true, h
	return p.doneOf(s, h)
}

// join uses the holder that the daemon has of a lease, if it has one.
func (p *presences) join(s *Service, at place, l lease.Lease) (done func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.main[at]
	if h == nil || h.epoch != l.Epoch || !l.Holds(lease.Operator, h.id) {
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
