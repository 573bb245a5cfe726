// Package egress is the data plane of the gateway: a network stack for every
// sandbox. The stack resolves names with its own DNS. A connection is checked
// against the policy, dialled, and only then accepted. Its input is hostile, so
// it runs in a process of its own ([Main]) that can only use the network.
package egress

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/internal/gateway/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// Hooks are what a Plane tells its owner. They are called by many goroutines
// and must not block for long.
type Hooks struct {
	Event func(sandbox.ID, Event)
	Named func(id sandbox.ID, name string, number uint16) // a name has got an address
	Ended func(sandbox.ID)                                // the other end of the link is gone
	Own   func(netip.Addr) bool                           // an address is this machine's; nil: none is
}

// Plane holds the links of sandboxes. Its methods may be called concurrently.
type Plane struct {
	hooks Hooks
	total atomic.Int64 // connections of all sandboxes

	mu     sync.Mutex
	world  *world
	boxes  map[sandbox.ID]*box
	closed bool
}

// NewPlane returns a plane that reaches the world as settings say. The caller
// closes it.
func NewPlane(settings wire.Settings, hooks Hooks) (*Plane, error) {
	w, err := newWorld(settings, hooks.Own)
	if err != nil {
		return nil, err
	}
	return &Plane{hooks: hooks, world: w, boxes: map[sandbox.ID]*box{}}, nil
}

// Configure changes how the world is reached, for connections made from now on.
func (p *Plane) Configure(settings wire.Settings) error {
	w, err := newWorld(settings, p.hooks.Own)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.world = w
	for _, b := range p.boxes {
		b.world.Store(w)
	}
	return nil
}

// Add begins to serve the link of a sandbox, which becomes the plane's. An
// earlier one of that sandbox is closed.
func (p *Plane) Add(id sandbox.ID, a wire.Add, link *os.File) error {
	b, err := p.newBox(id, a, link)
	if err != nil {
		link.Close()
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		b.close()
		return fmt.Errorf("the gateway is closed")
	}
	old := p.boxes[id]
	p.boxes[id] = b
	p.mu.Unlock()
	if old != nil {
		old.close()
	}
	go p.follow(b)
	err = b.start()
	b.link.begin()
	return err
}

// follow forgets a sandbox whose kernel has ended.
func (p *Plane) follow(b *box) {
	<-b.link.ended
	p.mu.Lock()
	mine := p.boxes[b.id] == b
	if mine {
		delete(p.boxes, b.id)
	}
	p.mu.Unlock()
	b.close()
	if mine {
		p.hooks.Ended(b.id)
	}
}

// SetPolicy changes what a sandbox may do. Connections that it may not have any
// more are cut.
func (p *Plane) SetPolicy(id sandbox.ID, pol wire.Policy) error {
	p.mu.Lock()
	b := p.boxes[id]
	p.mu.Unlock()
	if b == nil {
		return fmt.Errorf("there is no link of sandbox %s", id)
	}
	return b.setPolicy(pol)
}

// Names returns every name that a sandbox has been given an address for.
func (p *Plane) Names(id sandbox.ID) map[string]uint16 {
	p.mu.Lock()
	b := p.boxes[id]
	p.mu.Unlock()
	if b == nil {
		return nil
	}
	return b.names.all()
}

// Remove ends the link of a sandbox.
func (p *Plane) Remove(id sandbox.ID) {
	p.mu.Lock()
	b := p.boxes[id]
	delete(p.boxes, id)
	p.mu.Unlock()
	if b != nil {
		b.close()
	}
}

// Held calls each with everything that another plane needs to go on with a
// link, as long as it returns no error.
func (p *Plane) Held(each func(sandbox.ID, wire.Add, *os.File) error) error {
	p.mu.Lock()
	boxes := maps.Clone(p.boxes)
	p.mu.Unlock()
	for id, b := range boxes {
		if err := each(id, b.held(), b.link.f); err != nil {
			return err
		}
	}
	return nil
}

// Len is how many sandboxes are served.
func (p *Plane) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.boxes)
}

// Close ends all links.
func (p *Plane) Close() {
	p.mu.Lock()
	boxes := p.boxes
	p.boxes, p.closed = nil, true
	p.mu.Unlock()
	for _, b := range boxes {
		b.close()
	}
}
