package profiles

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// identifies refuses a profile that wants identity tokens where there are none.
func (s *Service) identifies(p sandbox.Profile) error {
	switch {
	case len(p.Audiences()) == 0:
		return nil
	case s.cfg.Identities == nil:
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "identity tokens", Message: "this daemon issues none"}
	}
	return s.cfg.Identities.Available()
}

// tokens issues the identity tokens that a profile adds to requests of a sandbox.
func (s *Service) tokens(tenant string, id sandbox.ID, p sandbox.Profile) (all []EgressSecret, err error) {
	if err := s.identifies(p); err != nil {
		return nil, err
	}
	for _, audience := range p.Audiences() {
		v, err := s.cfg.Identities.Token(tenant, id, audience)
		if err != nil {
			return all, err
		}
		all = append(all, EgressSecret{Name: sandbox.IdentityToken(audience), Value: v})
	}
	return all, nil
}

// WatchTokens gives the gateway new identity tokens every so often, until ctx ends.
func (s *Service) WatchTokens(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		if err := s.renew(ctx); err != nil && ctx.Err() == nil {
			s.Report(ctx, err)
		}
	}
}

// renew updates the gateway for sandboxes that send identity tokens.
func (s *Service) renew(ctx context.Context) error {
	all, err := s.cfg.Sandboxes.Recorded(ctx)
	if err != nil {
		return err
	}
	var senders []store.Sandbox
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		for i := range all {
			if !all[i].Spec.Network.Asked() {
				continue
			}
			p, err := tx.Profiles().ForNetwork(ctx, all[i].Tenant, all[i].Spec.Network)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue
			}
			if err != nil {
				return err
			}
			if len(p.Audiences()) > 0 {
				senders = append(senders, all[i])
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.Enforce(ctx, senders)
}
