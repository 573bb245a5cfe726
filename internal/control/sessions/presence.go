package sessions

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
)

// daemonHolder is the prefix of the ids of holders that are daemons.
const daemonHolder = "daemon-"

// daemon names this daemon as the maker of sandboxes and as a holder. The next
// daemon of this node has the same name.
func (p *presences) daemon() string { return daemonHolder + p.leases.Node + "-" }

// holderID makes the id of a holder of this daemon.
func (p *presences) holderID() string { return newID(p.daemon()) }

// ownID reports whether an id was made by a daemon of this node. Names of other
// nodes may begin like the name of this one.
func (p *presences) ownID(id string) bool {
	return strings.HasPrefix(id, p.daemon()) && len(id) == len(p.holderID())
}

type place struct{ tenant, group string }

// presences contains this daemon's holders, which hold sandboxes for requests
// in progress.
type presences struct {
	leases *leases
	mu     sync.Mutex
	all    map[*presence]bool
	main   map[place]*presence
	moves  map[place]*movement // places that accept no new requests
}

// presence is one holder.
type presence struct {
	at    place
	id    string
	epoch int64
	uses  int
	timer *time.Timer // releases it; nil while in use
	// over ends when its requests must end, with the reason.
	over context.Context
	end  context.CancelCauseFunc
}

// begin adds an acquired holder, for one use. ok is false if the session is being
// moved.
func (p *presences) begin(at place, id string, epoch int64) (u use, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moves[at] != nil {
		return u, false
	}
	if p.all == nil {
		p.all, p.main = map[*presence]bool{}, map[place]*presence{}
	}
	h := &presence{at: at, id: id, epoch: epoch, uses: 1}
	h.over, h.end = context.WithCancelCause(context.Background())
	p.all[h], p.main[at] = true, h
	return use{p.doneOf(h), h.over}, true
}

// use is one use of a holder. It ends when done is called; the request must end
// when over does.
type use struct {
	done func()
	over context.Context
}

// join uses the daemon's holder of a lease, if there is one. The lease may have
// changed since it was read.
func (p *presences) join(at place, l lease.Lease) (u use, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.main[at]
	if h == nil || p.moves[at] != nil || h.epoch != l.Epoch || !l.Holds(lease.Operator, h.id) {
		return u, false
	}
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	h.uses++
	return use{p.doneOf(h), h.over}, true
}

func (p *presences) doneOf(h *presence) func() {
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if h.uses--; h.uses > 0 {
			return
		}
		if m := p.moves[h.at]; m != nil {
			m.ended()
		}
		wait := min(linger, p.leases.cfg.Grace)
		if p.main[h.at] != h {
			wait = 0
		}
		h.timer = time.AfterFunc(wait, func() { p.release(h) })
	})
}

// release releases a holder, unless it is used again.
func (p *presences) release(h *presence) {
	p.mu.Lock()
	unused := h.uses == 0 && p.all[h]
	if unused {
		delete(p.all, h)
		if p.main[h.at] == h {
			delete(p.main, h.at)
		}
	}
	p.mu.Unlock()
	if unused {
		h.end(nil)
	}
	if !unused || p.leases.Life.Err() != nil {
		return
	}
	_, _, err := p.leases.of(h.at.tenant).Apply(p.leases.Life, h.at.group, lease.Release{Kind: lease.Operator, ID: h.id})
	p.leases.Report(p.leases.Life, err)
}

// cut ends the requests that use a sandbox, for the reason why. Later requests
// need another holder.
func (p *presences) cut(at place, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.main, at)
	for h := range p.all {
		if h.at == at {
			h.end(why)
		}
	}
}

// beat sends heartbeats for the holders of this daemon.
func (p *presences) beat(ctx context.Context) {
	p.mu.Lock()
	all := make([]*presence, 0, len(p.all))
	for h := range p.all {
		all = append(all, h)
	}
	p.mu.Unlock()
	for _, h := range all {
		op := lease.Heartbeat{Kind: lease.Operator, ID: h.id, Epoch: h.epoch}
		_, _, err := p.leases.of(h.at.tenant).Apply(ctx, h.at.group, op)
		p.leases.Report(ctx, err)
	}
}

// busy reports whether a daemon serves a request in the sandbox of a lease.
func (p *presences) busy(ctx context.Context, at place) (bool, error) {
	uses, own := p.used(at)
	if uses > 0 {
		return true, nil
	}
	l, err := p.leases.of(at.tenant).Load(ctx, at.group)
	for _, h := range l.Holders {
		ours := own[h.ID] || p.ownID(h.ID)
		if strings.HasPrefix(h.ID, daemonHolder) && !ours {
			return true, err
		}
	}
	return false, err
}

// movement is a move of a session by this daemon. Requests wait until open is
// closed.
type movement struct {
	open  chan struct{}
	quiet chan struct{} // gets a value when a holder of this daemon becomes unused
}

func (m *movement) ended() {
	select {
	case m.quiet <- struct{}{}:
	default:
	}
}

// shut makes requests for a sandbox wait until open is called. If the session
// is already being moved, it waits for that first.
func (p *presences) shut(ctx context.Context, at place) (m *movement, open func(), err error) {
	for {
		p.mu.Lock()
		other := p.moves[at]
		if other == nil {
			m = &movement{open: make(chan struct{}), quiet: make(chan struct{}, 1)}
			if p.moves == nil {
				p.moves = map[place]*movement{}
			}
			p.moves[at] = m
			p.mu.Unlock()
			return m, func() {
				p.mu.Lock()
				delete(p.moves, at)
				p.mu.Unlock()
				close(m.open)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-other.open:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// opening returns a channel that is closed when a sandbox may be used again;
// nil if it may be used now.
func (p *presences) opening(at place) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.moves[at]; m != nil {
		return m.open
	}
	return nil
}

// used reports whether a request of this daemon uses a sandbox, and which of
// its holders belong to this daemon.
func (p *presences) used(at place) (uses int, own map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own = map[string]bool{}
	for h := range p.all {
		if h.at == at {
			uses += h.uses
			own[h.id] = true
		}
	}
	return uses, own
}
