package registry

import (
	"context"
	"sync"

	"github.com/atoll-run/atoll/driver"
)

// Provider is an open provider with its identity.
type Provider struct {
	driver.Provider
	Name string
	// Binding names what the sandboxes belong to: an account, an endpoint or a
	// machine. It is no secret. Empty: this machine.
	Binding string
	// Former are the bindings that records of earlier versions have.
	Former []string

	mu    sync.Mutex
	facts driver.Facts // of the last Probe that found the provider available
}

// Unwrap implements driver.Unwrapper.
func (p *Provider) Unwrap() any { return p.Provider }

// Facts returns what Probe found, asking once until the provider is available:
// what does not change while a process runs, such as its capabilities and which
// limits it enforces. Call Probe to find out whether it still works.
func (p *Provider) Facts(ctx context.Context) (driver.Facts, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.facts.Available {
		return p.facts, nil
	}
	facts, err := p.Probe(ctx)
	if err == nil {
		p.facts = facts
	}
	return facts, err
}
