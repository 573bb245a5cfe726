package plane

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/policy"
	bundle "github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// SetNetwork replaces what a sandbox may reach by rules of its own. It must have
// a network already, and one of its own: a stored profile is changed for all
// who work by it. What is not allowed any more is cut.
func (p *Plane) SetNetwork(ctx context.Context, ref string, n sandbox.Network) (store.Sandbox, error) {
	if err := n.Validate(); err != nil {
		return store.Sandbox{}, core.Named(opUpdate, err)
	}
	t, err := p.turn(ctx, ref, opUpdate, lifecycle.Update)
	if err != nil {
		return store.Sandbox{}, core.Named(opUpdate, err)
	}
	defer t.release()
	if err := ownNetwork(&t.box, n); err != nil {
		return t.box, core.Named(opUpdate, err)
	}
	spec := t.box.Spec
	spec.Labels, spec.Network = t.box.Labels, n
	if err := p.permit(ctx, t.action, &spec, nil, bundle.Network, bundle.Secrets); err != nil {
		return t.box, core.Named(opUpdate, err)
	}
	intent, err := p.enter(ctx, t, func(b *store.Sandbox) { b.Spec.Network = n }, func(tx *store.Tx) error {
		swaps, err := p.swaps(ctx, tx, &t.box)
		if err != nil {
			return err
		}
		local, _ := n.Local()
		return p.compiles(ctx, tx, t.box.Tenant, local, trusted(ctx, n), swaps)
	})
	if err != nil {
		return t.box, core.Named(opUpdate, err)
	}
	b, err := p.leave(ctx, t, intent, nil, func(*store.Sandbox) {}, nil)
	if err != nil {
		return b, core.Named(opUpdate, err)
	}
	return b, core.Named(opUpdate, p.enforce(ctx, []store.Sandbox{b}))
}

// ownNetwork refuses what cannot be changed.
func ownNetwork(b *store.Sandbox, n sandbox.Network) error {
	refuse := func(message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: message, Hint: hint}
	}
	switch {
	case !b.Spec.Network.Asked():
		return refuse("the sandbox was made without a network", "make it with one; it may lead nowhere at first")
	case b.Spec.Network.Profile != "":
		return refuse("the sandbox works by the profile "+b.Spec.Network.Profile, "change the profile")
	case n.Profile != "" || !n.Asked():
		return refuse("the sandbox has rules of its own, and keeps them", "give other rules")
	}
	return nil
}

// swaps returns where the placeholders of a recorded sandbox are replaced.
func (p *Plane) swaps(ctx context.Context, tx *store.Tx, b *store.Sandbox) (all []policy.Swap, err error) {
	uses, err := tx.SecretUses(ctx, b.Tenant, b.ID)
	if err != nil {
		return nil, err
	}
	for _, ref := range b.Spec.Secrets {
		for _, use := range uses {
			if use.Variable != ref.Variable() || use.Placeholder == "" {
				continue
			}
			s, err := tx.Secret(ctx, b.Tenant, ref.Name)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue // it is gone, and nothing is replaced
			}
			if err != nil {
				return nil, err
			}
			all = append(all, policy.Swap{Secret: ref.Name, Placeholder: use.Placeholder, Hosts: swapHosts(ref, &s), In: ref.In})
		}
	}
	return all, nil
}
