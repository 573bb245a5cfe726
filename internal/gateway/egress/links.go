// Package egress is the data plane of the gateway. It runs a network stack for
// every sandbox, which answers DNS queries itself. A connection is checked
// against the policy, dialled, and only then accepted. The input is hostile, so
// the package runs in a separate process ([Main]) that can access nothing but
// the network.
package egress

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/sandbox"
)

// Hooks are callbacks to the owner of Links. They are called concurrently and
// must not block for long.
type Hooks struct {
	Event func(sandbox.ID, Event)
	Named func(id sandbox.ID, name string, number uint16) // a name was given an address
	Ended func(sandbox.ID)                                // the other end of the link was closed
	Own   func(netip.Addr) bool                           // whether an address belongs to this machine; nil: none does
}

// Links holds the links of sandboxes. It is safe for concurrent use.
type Links struct {
	hooks Hooks
	total atomic.Int64 // number of connections of all sandboxes

	mu        sync.Mutex
	outgoing  *outgoing
	sandboxes map[sandbox.ID]*attachment
	closed    bool
}

// NewLinks returns Links that connect to the outside as settings say. The
// caller closes it.
func NewLinks(settings messages.Settings, hooks Hooks) (*Links, error) {
	w, err := newOutgoing(settings, hooks.Own)
	if err != nil {
		return nil, err
	}
	return &Links{hooks: hooks, outgoing: w, sandboxes: map[sandbox.ID]*attachment{}}, nil
}

// Configure changes the settings for new connections.
func (p *Links) Configure(settings messages.Settings) error {
	w, err := newOutgoing(settings, p.hooks.Own)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outgoing = w
	for _, b := range p.sandboxes {
		b.outgoing.Store(w)
	}
	return nil
}

// Add starts to serve the link of a sandbox and takes ownership of link. An
// earlier link of that sandbox is closed.
func (p *Links) Add(id sandbox.ID, a messages.Add, link *os.File) error {
	b, err := p.newAttachment(id, a, link)
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
	old := p.sandboxes[id]
	p.sandboxes[id] = b
	p.mu.Unlock()
	if old != nil {
		old.close()
	}
	go p.follow(b)
	err = b.start()
	b.link.begin()
	return err
}

// follow removes a sandbox when its link ends.
func (p *Links) follow(b *attachment) {
	<-b.link.ended
	p.mu.Lock()
	mine := p.sandboxes[b.id] == b
	if mine {
		delete(p.sandboxes, b.id)
	}
	p.mu.Unlock()
	b.close()
	if mine {
		p.hooks.Ended(b.id)
	}
}

// SetPolicy replaces the policy of a sandbox. Connections that are no longer
// allowed are cut.
func (p *Links) SetPolicy(id sandbox.ID, pol messages.Policy) error {
	p.mu.Lock()
	b := p.sandboxes[id]
	p.mu.Unlock()
	if b == nil {
		return fmt.Errorf("there is no link of sandbox %s", id)
	}
	return b.setPolicy(pol)
}

// Names returns all names of a sandbox that have an address.
func (p *Links) Names(id sandbox.ID) map[string]uint16 {
	p.mu.Lock()
	b := p.sandboxes[id]
	p.mu.Unlock()
	if b == nil {
		return nil
	}
	return b.names.all()
}

// Remove closes the link of a sandbox.
func (p *Links) Remove(id sandbox.ID) {
	p.mu.Lock()
	b := p.sandboxes[id]
	delete(p.sandboxes, id)
	p.mu.Unlock()
	if b != nil {
		b.close()
	}
}

// Handover calls each with everything that another process needs to take over a link,
// and stops at the first error.
func (p *Links) Handover(each func(sandbox.ID, messages.Add, *os.File) error) error {
	p.mu.Lock()
	sandboxes := maps.Clone(p.sandboxes)
	p.mu.Unlock()
	for id, b := range sandboxes {
		if err := each(id, b.handover(), b.link.f); err != nil {
			return err
		}
	}
	return nil
}

// Len returns the number of links.
func (p *Links) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sandboxes)
}

// Close ends all links.
func (p *Links) Close() {
	p.mu.Lock()
	sandboxes := p.sandboxes
	p.sandboxes, p.closed = nil, true
	p.mu.Unlock()
	for _, b := range sandboxes {
		b.close()
	}
}
