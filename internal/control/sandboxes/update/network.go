package update

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// SetNetwork replaces a sandbox's own network rules. The sandbox must have been
// created with a network and with its own rules; to change a stored profile,
// change the profile. Connections that are no longer allowed are cut.
func (s *Updater) SetNetwork(ctx context.Context, ref string, n sandbox.Network) (_ store.Sandbox, err error) {
	defer core.Name(opUpdate, &err)
	if err := n.Validate(); err != nil {
		return store.Sandbox{}, err
	}
	t, err := s.Records.Lock(ctx, ref, opUpdate, lifecycle.Update)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.Release()
	if err := ownNetwork(&t.Sandbox, n); err != nil {
		return t.Sandbox, err
	}
	if n, err = s.Secrets.SealProxy(t.Sandbox.Tenant, n); err != nil {
		return t.Sandbox, err
	}
	spec := t.Sandbox.Spec
	spec.Labels, spec.Network = t.Sandbox.Labels, n
	if err := s.Policies.Permit(ctx, t.Action, &spec, nil, policyset.Network, policyset.Secrets); err != nil {
		return t.Sandbox, err
	}
	intent, err := s.Records.Enter(ctx, t, func(b *store.Sandbox) { b.Spec.Network = n }, func(tx *store.Tx) error {
		swaps, err := s.Secrets.Swaps(ctx, tx, &t.Sandbox)
		if err != nil {
			return err
		}
		return s.Profiles.Check(ctx, tx, t.Sandbox.Tenant, n, swaps)
	})
	if err != nil {
		return t.Sandbox, err
	}
	b, err := s.Records.Leave(ctx, t, intent, nil, func(*store.Sandbox) {}, nil)
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
