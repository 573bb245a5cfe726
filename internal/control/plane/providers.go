package plane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	bundle "github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Backend is a provider of this daemon.
type Backend struct {
	Name string
	// Binding names what its sandboxes belong to, such as an account of a
	// service. Empty: this machine.
	Binding string
	// Control says what makes the sandboxes.
	Control control.Config
}

// Open opens a provider by its name. An unknown name is CodeInvalid. It returns
// the same provider whenever it is called, and is called concurrently.
type Open func(ctx context.Context, name string) (Backend, error)

// backend is a provider that is open. What is done by its control passes no
// guard: it is a part of an operation that did, or the daemon's own housekeeping.
// Callers get handles that do, from Plane.handle.
type backend struct {
	Backend
	control *control.Control
}

// facts are what the provider can do, as far as that is known.
func (b *backend) facts(ctx context.Context) (driver.Facts, error) {
	if b.Control.Facts == nil {
		return b.Control.Provider.Probe(ctx)
	}
	return b.Control.Facts(ctx)
}

// network reports whether sandboxes of the provider are connected to the
// gateway.
func (b *backend) network(ctx context.Context) bool {
	facts, err := b.facts(ctx)
	return err == nil && facts.Capabilities.Network
}

// backends are the providers that are open, by name.
type backends struct {
	mu   sync.Mutex
	open map[string]*backend
}

// backend returns the provider with that name, opening it if need be. An empty
// name is the default one.
func (p *Plane) backend(ctx context.Context, name string) (*backend, error) {
	if name == "" {
		name = p.cfg.Provider
	}
	p.backends.mu.Lock()
	be := p.backends.open[name]
	p.backends.mu.Unlock()
	if be != nil {
		return be, nil
	}
	if p.cfg.Open == nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "provider.open", Subject: name, Message: "there is no such provider"}
	}
	opened, err := p.cfg.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return p.addBackend(opened), nil
}

func (p *Plane) addBackend(b Backend) *backend {
	b.Control.Workspaces = p.cfg.Workspaces != nil
	b.Control.Defaults = p.cfg.Defaults
	p.backends.mu.Lock()
	defer p.backends.mu.Unlock()
	if p.backends.open == nil {
		p.backends.open = map[string]*backend{}
	}
	if p.backends.open[b.Name] == nil {
		p.backends.open[b.Name] = &backend{b, control.New(b.Control)}
	}
	return p.backends.open[b.Name]
}

// openBackends returns the names of the providers that are open.
func (p *Plane) openBackends() []string {
	p.backends.mu.Lock()
	defer p.backends.mu.Unlock()
	return slices.Sorted(maps.Keys(p.backends.open))
}

// of returns the provider of a recorded sandbox. It is CodeUnavailable if this
// daemon cannot reach what the sandbox belongs to: that says nothing about the
// sandbox.
func (p *Plane) of(ctx context.Context, b *store.Sandbox) (*backend, error) {
	be, err := p.backend(ctx, b.Provider)
	if err != nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "sandbox.find", Subject: b.Name, Cause: err,
			Message: fmt.Sprintf("its provider %s cannot be used: %v", b.Provider, err),
			Hint:    "start the daemon with that provider",
		}
	}
	if b.Binding != "" && b.Binding != be.Binding {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "sandbox.find", Subject: b.Name,
			Message: fmt.Sprintf("it belongs to %s, and the provider %s works on %s", b.Binding, b.Provider, be.Binding),
			Hint:    "start the daemon with the account and the address that the sandbox was made with",
		}
	}
	return be, nil
}

// reach returns a handle on a recorded sandbox.
func (p *Plane) reach(ctx context.Context, b *store.Sandbox) (*control.Sandbox, error) {
	be, err := p.of(ctx, b)
	if err != nil {
		return nil, err
	}
	return be.control.Attach(ctx, b.ID, b.Name)
}

// handle returns a handle for callers: everything that is done with it passes
// the guard.
func (p *Plane) handle(box *control.Sandbox) *control.Sandbox { return box.Guarded(p.Act) }

// MayListProviders allows the caller to see the providers of the daemon.
func (p *Plane) MayListProviders(ctx context.Context) error {
	_, err := p.Look(ctx, ops.ProviderList, "")
	return err
}

// chosen returns the provider that a request for a sandbox names. Who does not
// own the machine may not choose any: some isolate nothing, and others cost.
func (p *Plane) chosen(ctx context.Context, who key.Principal, name string) (*backend, error) {
	if who.UID == nil && name != "" && name != p.cfg.Provider && !slices.Contains(p.cfg.Shared, name) {
		return nil, &sandbox.Error{
			Code: sandbox.CodeDenied, Subject: "provider", Message: "the provider " + name + " is for the owner of the machine only",
			Hint: "leave it out, or have the owner share it with: atoll up --share-provider " + name,
		}
	}
	return p.backend(ctx, name)
}

// enforceable refuses limits that a policy or a quota demands and the provider
// does not enforce.
func (p *Plane) enforceable(ctx context.Context, be *backend, tenant string, want *control.CreateRequest) error {
	if len(want.Limits) == 0 {
		return nil
	}
	caps := p.policies().Caps(bundle.About{Tenant: tenant, Labels: want.Spec.Labels}).Resources
	quotas, err := p.limits(ctx, tenant)
	if err != nil {
		return err
	}
	for name, demanded := range map[string]bool{
		"cpus": caps.CPUs != 0 || quotas.CPUs != 0, "memory": caps.Memory != 0 || quotas.Memory != 0,
		"disk": caps.Disk != 0 || quotas.Disk != 0, "pids": caps.PIDs != 0,
	} {
		if loose, ok := want.Limits[name]; ok && demanded {
			return &sandbox.Error{
				Code: sandbox.CodeUnsupported, Subject: name, Message: "a policy or quota limits it, and the provider " + be.Name + " does not enforce that: " + loose.Why,
				Hint: "choose another provider",
			}
		}
	}
	return nil
}
