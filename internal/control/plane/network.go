package plane

import (
	"context"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/policy/policyset"
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
	if err := p.Policies.Permit(ctx, t.action, &spec, nil, policyset.Network, policyset.Secrets); err != nil {
		return t.box, core.Named(opUpdate, err)
	}
	intent, err := p.enter(ctx, t, func(b *store.Sandbox) { b.Spec.Network = n }, func(tx *store.Tx) error {
		swaps, err := p.Secrets.Swaps(ctx, tx, &t.box)
		if err != nil {
			return err
		}
		return p.Profiles.Check(ctx, tx, t.box.Tenant, n, swaps)
	})
	if err != nil {
		return t.box, core.Named(opUpdate, err)
	}
	b, err := p.leave(ctx, t, intent, nil, func(*store.Sandbox) {}, nil)
	if err != nil {
		return b, core.Named(opUpdate, err)
	}
	return b, core.Named(opUpdate, p.Profiles.Enforce(ctx, []store.Sandbox{b}))
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

// bind ties a new sandbox to its profile and its secrets in the transaction that
// records it. It returns the variables of the sandbox that hold secrets.
func (p *Plane) bind(ctx context.Context, tx *store.Tx, tenant string, spec *sandbox.Spec, values secrets.Revealed) (map[string]string, error) {
	env, swaps, err := p.Secrets.Bind(ctx, tx, tenant, spec, values)
	if err != nil {
		return nil, err
	}
	return env, p.Profiles.Bind(ctx, tx, tenant, spec, swaps)
}

// egress completes a request for a sandbox of a provider.
func (p *Plane) egress(ctx context.Context, be *providers.Backend, tenant string, spec *sandbox.Spec) (control.Egress, error) {
	return p.Policies.Egress(ctx, tenant, spec, be.HasNetwork(ctx))
}

// recorded implements profiles.Sandboxes.
type recorded struct{ p *Plane }

func (r recorded) Recorded(ctx context.Context) ([]store.Sandbox, error) {
	return r.p.recordedBoxes(ctx)
}

func (r recorded) HasGateway(ctx context.Context, b *store.Sandbox) (bool, error) {
	be, err := r.p.Providers.Of(ctx, b)
	return err == nil && be.HasNetwork(ctx), err
}

// enforcer implements secrets.Enforcer, for a service that is made before the
// one that does it.
type enforcer struct{ p *Plane }

func (e enforcer) Enforce(ctx context.Context, all []store.Sandbox) error {
	return e.p.Profiles.Enforce(ctx, all)
}
