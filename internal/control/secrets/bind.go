package secrets

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Bind records which secrets a new sandbox uses, in the transaction that
// records the sandbox. It returns the sandbox's environment variables, and the
// placeholders that the gateway replaces.
func (s *Service) Bind(ctx context.Context, tx *store.Tx, tenant string, spec *sandbox.Spec, values Revealed) (env map[string]string, swaps []policy.Swap, err error) {
	env = map[string]string{}
	for _, ref := range spec.Secrets {
		use, swap, text, err := bindOne(ctx, tx, tenant, ref, values)
		if err != nil {
			return nil, nil, err
		}
		if err := tx.Secrets().Use(ctx, tenant, spec.ID, use); err != nil {
			return nil, nil, err
		}
		env[use.Variable] = text
		if swap != nil {
			swaps = append(swaps, *swap)
		}
	}
	return env, swaps, nil
}

// bindOne returns the placeholder of a secret and where it is replaced; or the
// value itself, if the sandbox requests it and policies allow that.
func bindOne(ctx context.Context, tx *store.Tx, tenant string, ref sandbox.SecretRef, values Revealed) (use store.SecretUse, swap *policy.Swap, text string, err error) {
	use = store.SecretUse{Variable: ref.Variable(), Secret: ref.Name}
	found, err := tx.Secrets().Get(ctx, tenant, ref.Name)
	if err != nil {
		return use, nil, "", core.Hinted(err, "create it with: atoll secret create "+ref.Name)
	}
	v, err := values.of(&found)
	if err != nil {
		return use, nil, "", err
	}
	if ref.Mode == sandbox.SecretEnv {
		if !found.AllowEnv {
			return use, nil, "", &sandbox.Error{
				Code: sandbox.CodeDenied, Subject: ref.Name, Message: "the value of this secret must not be in a sandbox",
				Hint: "leave out mode=env, so that the gateway adds it; or create the secret with --allow-env",
			}
		}
		return use, nil, string(v.Reveal()), nil
	}
	if len(found.Hosts) == 0 {
		return use, nil, "", secret.NoHosts(ref.Name)
	}
	use.Placeholder = secret.NewPlaceholder(v)
	return use, &policy.Swap{Secret: ref.Name, Placeholder: use.Placeholder, Hosts: found.HostsFor(ref), In: ref.In}, use.Placeholder, nil
}

// Swaps returns the placeholders of a recorded sandbox that the gateway
// replaces. Secrets that no longer exist are left out.
func (s *Service) Swaps(ctx context.Context, tx *store.Tx, b *store.Sandbox) (all []policy.Swap, err error) {
	uses, err := tx.Secrets().Uses(ctx, b.Tenant, b.ID)
	if err != nil {
		return nil, err
	}
	for _, ref := range b.Spec.Secrets {
		for _, use := range uses {
			if use.Variable != ref.Variable() || use.Placeholder == "" {
				continue
			}
			found, err := tx.Secrets().Get(ctx, b.Tenant, ref.Name)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, policy.Swap{Secret: ref.Name, Placeholder: use.Placeholder, Hosts: found.HostsFor(ref), In: ref.In})
		}
	}
	return all, nil
}

// Environment returns the environment variables of a recorded sandbox that
// contain secrets or placeholders. Placeholders never change, because the
// sandbox's memory may contain them.
func (s *Service) Environment(ctx context.Context, b *store.Sandbox) (map[string]string, error) {
	if len(b.Spec.Secrets) == 0 {
		return nil, nil
	}
	env, plain := map[string]string{}, map[string]store.Secret{}
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		uses, err := tx.Secrets().Uses(ctx, b.Tenant, b.ID)
		if err != nil {
			return err
		}
		for _, u := range uses {
			if env[u.Variable] = u.Placeholder; u.Placeholder != "" {
				continue
			}
			if plain[u.Variable], err = tx.Secrets().Get(ctx, b.Tenant, u.Secret); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for variable, found := range plain {
		v, err := s.Open(ctx, &found)
		if err != nil {
			return nil, err
		}
		env[variable] = string(v.Reveal())
		v.Clear()
	}
	return env, nil
}
