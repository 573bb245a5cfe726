package providers

import (
	"context"
	"slices"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
)

// ChooseProvider selects a provider that meets the needs of a sandbox, and
// explains the choice. It creates nothing.
func (s *Service) ChooseProvider(ctx context.Context, n catalog.Needs) (catalog.Choice, error) {
	all, err := s.Providers(ctx)
	if err != nil {
		return catalog.Choice{}, err
	}
	facts := catalog.FactsOf(all)
	if s.HasNodes() {
		for _, node := range s.cfg.Nodes.Candidates("", 0) {
			at := slices.IndexFunc(facts, func(f catalog.Facts) bool { return f.Descriptor.Name == node.Descriptor.Name })
			if at >= 0 {
				facts[at].Node = node.Node
			}
		}
	}
	return catalog.Choose(n, facts), nil
}

// Providers describes the providers of the daemon.
func (s *Service) Providers(ctx context.Context) ([]catalog.Provider, error) {
	who, err := s.Look(ctx, ops.ProviderList, "")
	if err != nil {
		return nil, err
	}
	list := s.cfg.Known
	if s.cfg.Machines != nil {
		own, err := s.cfg.Machines.Known(ctx, who.Tenant)
		if err != nil {
			return nil, err
		}
		list = append(slices.Clone(list), own...)
	}
	if s.cfg.Nodes != nil {
		list = append(slices.Clone(list), s.cfg.Nodes.Known()...)
	}
	all := make([]catalog.Provider, len(list))
	for i, known := range list {
		all[i] = s.describe(ctx, known)
	}
	return catalog.Describe(all), ctx.Err()
}

// describe fills in what a provider says about itself.
func (s *Service) describe(ctx context.Context, p catalog.Provider) catalog.Provider {
	p.Default, p.Capabilities = p.Name == s.cfg.Default.Name, map[string]bool{}
	if p.Problem != "" { // a node that gets no sandboxes
		return p
	}
	found, err := s.peek(ctx, p.Name)
	if err == nil {
		p.Binding = found.Binding
		facts, probeErr := found.Engine.Provider.Probe(ctx)
		driver.Describe(found.Engine.Provider, facts, &p)
		err = probeErr
	}
	if err != nil {
		p.Problem = err.Error()
	}
	return p
}

// Binding returns the binding of a provider's sandboxes, such as an account.
func (s *Service) Binding(ctx context.Context, provider string) (string, error) {
	found, err := s.peek(ctx, provider)
	return found.Binding, err
}

// Present returns the current name of a binding that is recorded for a sandbox
// of a provider.
func (s *Service) Present(ctx context.Context, provider, binding string) string {
	if found, err := s.peek(ctx, provider); err == nil && slices.Contains(found.Former, binding) {
		return found.Binding
	}
	return binding
}

// CheckImage refuses an image that the provider cannot use. An empty image
// means the provider's default.
func (s *Service) CheckImage(ctx context.Context, provider, image string) error {
	found, err := s.peek(ctx, provider)
	if err != nil {
		return err
	}
	facts, err := found.Engine.Provider.Probe(ctx)
	if err != nil {
		return err
	}
	return driver.CheckImage(found.Engine.Provider, facts, image)
}

// peek opens a provider without adding it to the providers that this daemon
// manages.
func (s *Service) peek(ctx context.Context, name string) (Opened, error) {
	if name == s.cfg.Default.Name {
		return s.cfg.Default, nil
	}
	return s.cfg.Open(ctx, name)
}
