package sandboxes

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// SetNetwork replaces a sandbox's own network rules. The sandbox must have been
// created with a network and with its own rules; to change a stored profile,
// change the profile. Connections that are no longer allowed are cut.
func (s *updater) SetNetwork(ctx context.Context, ref string, n sandbox.Network) (_ store.Sandbox, err error) {
	defer core.Name(opUpdate, &err)
	if err := n.Validate(); err != nil {
		return store.Sandbox{}, err
	}
	t, err := s.lock(ctx, ref, opUpdate, lifecycle.Update)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.release()
	if err := ownNetwork(&t.box, n); err != nil {
		return t.box, err
	}
	if n, err = s.Secrets.SealProxy(t.box.Tenant, n); err != nil {
		return t.box, err
	}
	spec := t.box.Spec
	spec.Labels, spec.Network = t.box.Labels, n
	if err := s.Policies.Permit(ctx, t.action, &spec, nil, policyset.Network, policyset.Secrets); err != nil {
		return t.box, err
	}
	intent, err := s.enter(ctx, t, func(b *store.Sandbox) { b.Spec.Network = n }, func(tx *store.Tx) error {
		swaps, err := s.Secrets.Swaps(ctx, tx, &t.box)
		if err != nil {
			return err
		}
		return s.Profiles.Check(ctx, tx, t.box.Tenant, n, swaps)
	})
	if err != nil {
		return t.box, err
	}
	b, err := s.leave(ctx, t, intent, nil, func(*store.Sandbox) {}, nil)
	if err != nil {
		return b, err
	}
	return b, s.Profiles.Enforce(ctx, []store.Sandbox{b})
}

// ownNetwork returns an error if the network of a sandbox cannot be changed.
func ownNetwork(b *store.Sandbox, n sandbox.Network) error {
	refuse := func(message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: message, Hint: hint}
	}
	switch {
	case !b.Spec.Network.Asked():
		return refuse("the sandbox was created without a network", "create it with a network; it may deny everything at first")
	case b.Spec.Network.Profile != "":
		return refuse("the sandbox uses the profile "+b.Spec.Network.Profile, "change the profile")
	case n.Profile != "" || !n.Asked():
		return refuse("the sandbox has its own rules, which cannot be replaced by a profile", "set rules instead")
	}
	return nil
}

// bind stores the references of a new sandbox to its profile and secrets, in
// the transaction that records the sandbox. It returns the environment
// variables that contain secrets.
func (s *records) bind(ctx context.Context, tx *store.Tx, tenant string, spec *sandbox.Spec, values secrets.Revealed) (map[string]string, error) {
	env, swaps, err := s.Secrets.Bind(ctx, tx, tenant, spec, values)
	if err != nil {
		return nil, err
	}
	return env, s.Profiles.Bind(ctx, tx, tenant, spec, swaps)
}

// HasGateway reports whether the gateway enforces the network rules of a
// sandbox.
func (s *records) HasGateway(ctx context.Context, b *store.Sandbox) (bool, error) {
	be, err := s.Providers.Of(ctx, b)
	return err == nil && be.HasNetwork(ctx), err
}
