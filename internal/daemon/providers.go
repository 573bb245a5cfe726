package daemon

import (
	"context"

	"github.com/atoll-run/atoll/internal/catalog"
	"github.com/atoll-run/atoll/sandbox"
)

// ChooseProvider selects a provider for what a sandbox needs, and explains the
// choice. It makes nothing.
func (s service) ChooseProvider(ctx context.Context, n sandbox.Needs) (sandbox.Choice, error) {
	all, err := s.Providers(ctx)
	if err != nil {
		return sandbox.Choice{}, err
	}
	return catalog.ChooseFrom(n, all), nil
}

// Providers describes the providers of the daemon.
func (s service) Providers(ctx context.Context) ([]sandbox.Provider, error) {
	if err := s.MayListProviders(ctx); err != nil {
		return nil, err
	}
	r := s.doctor.d.node.Providers()
	var all []sandbox.Provider
	for _, e := range r.Entries() {
		out := sandbox.Provider{
			Name: e.Name, Summary: e.Summary, Warning: e.Warning, Default: e.Name == s.doctor.d.opts.Provider, Capabilities: map[string]bool{},
		}
		p, err := r.Open(ctx, e.Name)
		if err == nil {
			out.Binding = p.Binding
			facts, probeErr := p.Probe(ctx)
			facts.Describe(&out)
			err = probeErr
		}
		if err != nil {
			out.Problem = err.Error()
		}
		all = append(all, out)
	}
	return catalog.Describe(all), ctx.Err()
}
