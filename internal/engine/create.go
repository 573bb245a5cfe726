package engine

import (
	"context"
	"maps"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// Labels that Atoll sets on sandboxes. Callers cannot use their prefix.
const (
	ReservedPrefix = plan.ReservedPrefix
	LabelName      = ReservedPrefix + "name"  // the sandbox's name
	LabelImage     = ReservedPrefix + "image" // the image
	LabelOwner     = ReservedPrefix + "owner" // the process that it must not outlive
	// LabelTenant is the tenant of a sandbox that a daemon created.
	LabelTenant = ReservedPrefix + "tenant"
)

// Plan returns how a sandbox is made without a daemon.
func (e *Engine) Plan(ctx context.Context, req sandbox.CreateRequest) (plan.Plan, error) {
	p, err := plan.Draft(plan.Ask{Request: plan.Request{CreateRequest: req}})
	if err != nil {
		return p, e.wrap(Action{Op: ops.SandboxCreate}, err)
	}
	return e.Fit(ctx, p)
}

// Fit adapts a plan to the provider; see plan.Plan.
func (e *Engine) Fit(ctx context.Context, p plan.Plan) (plan.Plan, error) {
	t := plan.Terms{
		Facts:      func() (driver.Facts, error) { return e.cfg.Facts(ctx) },
		Holds:      func(ref sandbox.SecretRef) bool { return driver.Holds(e.cfg.Provider, ref) },
		Workspaces: e.cfg.Workspaces, Defaults: e.cfg.Defaults, NewID: e.cfg.NewID,
	}
	if enforcer, ok := driver.As[driver.EgressEnforcer](e.cfg.Provider); ok {
		// Another daemon's ability is known when it has said who it is.
		if b, ok := driver.As[driver.Binder](e.cfg.Provider); ok && p.Spec.Network.Asked() {
			if _, err := b.Binding(ctx); err != nil {
				return p, e.wrap(Action{Op: ops.SandboxCreate}, err)
			}
		}
		ability := enforcer.EgressAbility()
		t.Ability = &ability
		if user, ok := driver.As[driver.GatewayUser](e.cfg.Provider); ok {
			t.Gateway = user.CanUseGateway()
		}
	}
	p, err := p.Fit(t)
	return p, e.wrap(Action{Op: ops.SandboxCreate}, err)
}

// specOf returns the Spec of a plan for the provider, including hidden
// variables.
func (e *Engine) specOf(p *plan.Plan) *sandbox.Spec {
	spec := p.Spec
	if len(p.Hidden) > 0 {
		spec.Env = maps.Clone(spec.Env)
		if spec.Env == nil {
			spec.Env = map[string]string{}
		}
		maps.Copy(spec.Env, p.Hidden)
	}
	spec.Secrets = nil
	for _, ref := range p.Spec.Secrets {
		if driver.Holds(e.cfg.Provider, ref) {
			spec.Secrets = append(spec.Secrets, ref)
		}
	}
	spec.Labels, spec.Lifetime.Timeout = e.labels(p), spec.Lifetime.HardTimeout()
	return &spec
}

// Create creates a sandbox. On an error, or if ctx ends first, nothing remains.
// progress is called during a pull; it may be nil.
func (e *Engine) Create(ctx context.Context, p plan.Plan, progress func(Progress)) (*Sandbox, error) {
	return e.make(ctx, &p, progress, func(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
		return e.makeNamed(ctx, spec, p.AsksName)
	})
}

// make creates a sandbox from a plan by calling create. progress may be nil.
func (e *Engine) make(ctx context.Context, p *plan.Plan, progress func(Progress), create func(context.Context, *sandbox.Spec) (driver.Instance, error)) (*Sandbox, error) {
	var sb *Sandbox
	spec := e.specOf(p)
	a := Action{Op: ops.SandboxCreate, Sandbox: spec.ID, Name: spec.Name, Subject: spec.Name}
	err := e.do(ctx, a, func(ctx context.Context) error {
		img, err := e.ensureImage(ctx, p, progress, spec)
		if err != nil {
			return err
		}
		inst, err := create(ctx, spec)
		if err != nil {
			return err
		}
		sb = &Sandbox{e: e, inst: inst, name: spec.Name, image: img, limits: p.Limits}
		return nil
	})
	return sb, err
}

// CheckIsolation refuses a demand that the provider does not meet now.
func (e *Engine) CheckIsolation(ctx context.Context, demand sandbox.Isolation) error {
	if demand == "" {
		return nil
	}
	facts, err := e.cfg.Facts(ctx)
	if err != nil {
		return err
	}
	return plan.Isolated(facts.Provider, facts.Isolation, demand)
}

// labels returns a sandbox's own labels together with Atoll's.
func (e *Engine) labels(p *plan.Plan) map[string]string {
	labels := map[string]string{LabelName: p.Spec.Name}
	if len(p.Spec.Image) <= bounds.MaxLabelLen {
		labels[LabelImage] = printable(p.Spec.Image)
	}
	if p.Bound {
		labels[LabelOwner] = e.cfg.Owner.Token()
	}
	if p.Tenant != "" {
		labels[LabelTenant] = p.Tenant
	}
	maps.Copy(labels, p.Spec.Labels)
	return labels
}

// ensureImage makes the image of spec available, and sets its digest in spec.
func (e *Engine) ensureImage(ctx context.Context, p *plan.Plan, progress func(Progress), spec *sandbox.Spec) (ImageConfig, error) {
	if spec.Image == HostImage {
		return ImageConfig{Ref: HostImage}, nil
	}
	if own, ok := driver.As[driver.ImageChecker](e.cfg.Provider); ok {
		return ImageConfig{Ref: spec.Image}, own.CheckImage(spec.Image)
	}
	facts, err := e.cfg.Facts(ctx)
	if err != nil {
		return ImageConfig{}, err
	}
	facts.Capabilities.Images = facts.Capabilities.Images && e.cfg.Images != nil
	if err := driver.CheckImage(e.cfg.Provider, facts, spec.Image); err != nil {
		return ImageConfig{}, err
	}
	img, err := e.cfg.Images.Ensure(ctx, ImageRequest{
		Ref: spec.Image, Tenant: p.Tenant, Platform: p.Platform, Pull: Pull(p.Pull), Progress: progress,
	})
	if err != nil {
		return ImageConfig{}, e.wrap(Action{Op: ops.ImageGet, Subject: spec.Image}, err)
	}
	if img.Ref != "" {
		spec.Image = img.Ref
	}
	return img, nil
}

// makeNamed creates the sandbox while no other one can take its name. A
// generated name is as unique as the id and needs no lock.
func (e *Engine) makeNamed(ctx context.Context, spec *sandbox.Spec, chosen bool) (driver.Instance, error) {
	if !chosen {
		return e.cfg.Provider.Create(ctx, spec)
	}
	release, err := e.cfg.LockNames(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	for found, err := range e.cfg.Provider.List(ctx) {
		if err != nil {
			return nil, err
		}
		if found.State != sandbox.Gone && (nameOf(found) == spec.Name || string(found.ID) == spec.Name) {
			return nil, &sandbox.Error{
				Code: sandbox.CodeAlreadyExists, Subject: spec.Name, Message: "a sandbox with that name exists",
				Hint: "choose another name, or remove that one with: atoll rm -f " + spec.Name,
			}
		}
	}
	return e.cfg.Provider.Create(ctx, spec)
}
