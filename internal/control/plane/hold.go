package plane

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// standing is what a request needs to go on: a key that is good, or, of who
// bears no key, a tenant that is not disabled.
type standing struct{ tenant, key string }

// holds are the requests that are under way, by what they need. They may be
// used concurrently.
type holds struct {
	mu sync.Mutex
	of map[standing]map[*hold]struct{}
}

type hold struct {
	end  context.CancelCauseFunc
	seen bool // it was there the time before
}

// add returns a context for a request, which ends with ctx or with its
// standing.
func (h *holds) add(ctx context.Context, need standing) context.Context {
	held, end := context.WithCancelCause(ctx)
	one := &hold{end: end}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[standing]map[*hold]struct{}{}
	}
	if h.of[need] == nil {
		h.of[need] = map[*hold]struct{}{}
	}
	h.of[need][one] = struct{}{}
	context.AfterFunc(ctx, func() { h.remove(need, one) })
	return held
}

func (h *holds) remove(need standing, one *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.of[need], one); len(h.of[need]) == 0 {
		delete(h.of, need)
	}
}

// old returns what requests need that were there the last time too: most are
// over sooner than anybody could look.
func (h *holds) old() (needs []standing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for need, all := range h.of {
		lasts := false
		for one := range all {
			lasts = lasts || one.seen
			one.seen = true
		}
		if lasts {
			needs = append(needs, need)
		}
	}
	return needs
}

// all returns what requests need that match.
func (h *holds) all(match func(standing) bool) (needs []standing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for need := range h.of {
		if match(need) {
			needs = append(needs, need)
		}
	}
	return needs
}

func (h *holds) end(need standing, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for one := range h.of[need] {
		one.end(why)
	}
}

// As returns a context for requests of who, which ends when the key that they
// bear, or their tenant, is not good any more: what is open then, such as a
// stream or a connection to a port, ends too. Its cause is what they are told.
func (p *Plane) As(ctx context.Context, who key.Principal) context.Context {
	return p.actAs(ctx, who, standing{tenant: who.Tenant, key: who.Key})
}

func (p *Plane) actAs(ctx context.Context, who key.Principal, need standing) context.Context {
	return guard.WithPrincipal(p.holds.add(ctx, need), who)
}

// holdPoll is how often requests that last are looked at: the time may have
// come, or another daemon may have revoked the key.
const holdPoll = time.Second

// WatchKeys ends requests that last longer than the keys they were made with,
// until ctx ends.
func (p *Plane) WatchKeys(ctx context.Context) {
	tick := time.NewTicker(holdPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.review(ctx, p.holds.old())
		}
	}
}

// review ends the requests that need what does not stand any more. What nobody
// can find out, for want of the store, goes on.
func (p *Plane) review(ctx context.Context, needs []standing) {
	for _, need := range needs {
		err := p.Store.View(ctx, func(tx *store.Tx) error { return p.stands(ctx, tx, need) })
		if sandbox.CodeOf(err) == sandbox.CodeUnauthorized {
			p.holds.end(need, err)
		}
	}
}

// stands reports CodeUnauthorized if a request would not be let in now.
func (p *Plane) stands(ctx context.Context, tx *store.Tx, need standing) error {
	if need.key != "" {
		return p.ring.Stands(ctx, tx, need.tenant, need.key)
	}
	t, err := tx.Tenant(ctx, need.tenant)
	if err == nil && !t.Disabled.IsZero() {
		err = &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "the tenant is disabled"}
	}
	return err
}

// ActAs is As for a request that needs another key than the one of who, and Stands
// reports CodeUnauthorized if a key is not good any more. They serve package exec.
func (p *Plane) ActAs(ctx context.Context, who key.Principal, tenant, keyID string) context.Context {
	return p.actAs(ctx, who, standing{tenant: tenant, key: keyID})
}

// Stands implements exec.Access.
func (p *Plane) Stands(ctx context.Context, tx *store.Tx, tenant, keyID string) error {
	return p.ring.Stands(ctx, tx, tenant, keyID)
}
