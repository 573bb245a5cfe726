package providerset

import (
	"cmp"
	"context"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Provider is an open provider with its identity.
type Provider struct {
	driver.Provider
	Name string
	// Binding identifies where the sandboxes are: an account, an endpoint or a
	// machine. It is not secret. Empty: this machine.
	Binding string
	// Former are the bindings recorded by earlier versions.
	Former []string

	isolation sandbox.Isolation // if the driver does not say

	mu    sync.Mutex
	facts driver.Facts // of the last successful Probe
}

// Unwrap implements driver.Unwrapper.
func (p *Provider) Unwrap() any { return p.Provider }

// Facts returns the result of Probe, which it calls until the provider is
// available. It contains what does not change while a process runs, such as
// capabilities and enforced limits. Call Probe to check whether the provider
// still works.
func (p *Provider) Facts(ctx context.Context) (driver.Facts, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.facts.Available {
		return p.facts, nil
	}
	facts, err := p.Probe(ctx)
	facts.Isolation = cmp.Or(facts.Isolation, p.isolation)
	if err == nil {
		p.facts = facts
	}
	return facts, err
}
