// Package providers opens the providers of a daemon, and finds the provider of
// a sandbox.
package providers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Opened is a provider opened for a daemon.
type Opened struct {
	Name string
	// Binding identifies where its sandboxes are, such as an account of a service.
	// Empty: this machine.
	Binding string
	// Former are the bindings recorded by earlier versions.
	Former []string
	// Engine configures the creation of its sandboxes. The Service sets
	// Workspaces and Defaults.
	Engine engine.Config
}

// Config configures a Service.
type Config struct {
	// Default creates sandboxes that request no provider.
	Default Opened
	// Open opens another provider by name. It returns CodeInvalid for an unknown
	// name, and the same provider for repeated calls. It must be safe for
	// concurrent use. Nil: there is only the default provider.
	Open func(ctx context.Context, name string) (Opened, error)
	// Known lists the providers that Open knows, with what is known without
	// opening them.
	Known []catalog.Provider
	// Shared are the additional providers that callers with an API key may choose.
	// The owner of the machine may choose any.
	Shared []string
	// Machines are the providers of self-hosted machines. Nil: there are none.
	Machines Machines
	// Nodes are the providers of the node daemons of this one. Nil: there are none.
	Nodes Nodes
	// Workspaces and Defaults are those of engine.Config, for all providers.
	Workspaces bool
	Defaults   sandbox.Resources
}

// Machines are the providers of self-hosted machines, each of one tenant. It
// must be safe for concurrent use.
type Machines interface {
	// Known lists those of a tenant, with what is known without opening them.
	Known(ctx context.Context, tenant string) ([]catalog.Provider, error)
	// Belongs reports whether a provider is that of a machine, and whether a tenant
	// may use it.
	Belongs(ctx context.Context, name, tenant string) (machine, ok bool)
}

// Nodes are the providers of node daemons. It must be safe for concurrent use.
type Nodes interface {
	// Known lists them, with what is known without opening them. One that takes no
	// sandboxes has a Problem.
	Known() []catalog.Provider
	// Any reports whether there are any, and Find returns one of them.
	Any() bool
	Find(name string) (p catalog.Provider, ok bool)
	// Candidates describes them for a sandbox with an image that asks for memory.
	Candidates(image string, memory int64) []catalog.Facts
	// Choose returns the one that suits a sandbox best, and why. Empty: none does.
	Choose(image string, memory int64, demand sandbox.Isolation) (provider, why string)
	// Lends reports whether they can get an image of this machine for a tenant.
	Lends(ctx context.Context, tenant, image string) bool
	// Reload reads what was decided about them.
	Reload(ctx context.Context) error
}

// Service holds the providers of a daemon. It is safe for concurrent use.
type Service struct {
	*core.Core
	cfg  Config
	mu   sync.Mutex
	open map[string]*Backend
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service {
	s := &Service{Core: c, cfg: cfg, open: map[string]*Backend{}}
	s.add(cfg.Default)
	return s
}

// Backend is an open provider. Its Engine has no guard: calls are part of an
// operation that passed one, or internal to the daemon.
type Backend struct {
	Name    string
	Binding string   // see Opened
	Former  []string // see Opened
	Driver  driver.Provider
	Engine  *engine.Engine

	facts func(context.Context) (driver.Facts, error)
}

// Has reports whether a recorded binding is the provider's. Records of early
// versions have no binding.
func (b *Backend) Has(binding string) bool {
	return binding == "" || binding == b.Binding || slices.Contains(b.Former, binding)
}

// Facts returns the provider's capabilities, as far as they are known.
func (b *Backend) Facts(ctx context.Context) (driver.Facts, error) {
	if b.facts == nil {
		return b.Driver.Probe(ctx)
	}
	return b.facts(ctx)
}

// Facts returns a provider's capabilities, as far as they are known.
func (s *Service) Facts(ctx context.Context, name string) (driver.Facts, error) {
	be, err := s.Backend(ctx, name)
	if err != nil {
		return driver.Facts{}, err
	}
	return be.Facts(ctx)
}

// Isolation returns the isolation of the sandboxes that the provider makes now.
// Empty: it is not known.
func (b *Backend) Isolation(ctx context.Context) sandbox.Isolation {
	facts, err := b.Facts(ctx)
	if err != nil {
		return ""
	}
	return facts.Isolation
}

// HasNetwork reports whether the provider's sandboxes are connected to the
// gateway.
func (b *Backend) HasNetwork(ctx context.Context) bool {
	facts, err := b.Facts(ctx)
	return err == nil && facts.Capabilities.Network
}

// HasMemory reports whether the provider's snapshots contain memory.
func (b *Backend) HasMemory(ctx context.Context) bool {
	facts, err := b.Facts(ctx)
	return err == nil && facts.Capabilities.Memory
}

// Backend returns the provider with that name, and opens it if necessary. An
// empty name means the default provider.
func (s *Service) Backend(ctx context.Context, name string) (*Backend, error) {
	name = cmp.Or(name, s.cfg.Default.Name)
	s.mu.Lock()
	be := s.open[name]
	s.mu.Unlock()
	if be != nil {
		return be, nil
	}
	if s.cfg.Open == nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "provider.open", Subject: name, Message: "there is no such provider"}
	}
	opened, err := s.cfg.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.add(opened), nil
}

func (s *Service) add(o Opened) *Backend {
	o.Engine.Workspaces, o.Engine.Defaults = s.cfg.Workspaces, s.cfg.Defaults
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[o.Name] == nil {
		s.open[o.Name] = &Backend{
			Name: o.Name, Binding: o.Binding, Former: o.Former, Driver: o.Engine.Provider, Engine: engine.New(o.Engine), facts: o.Engine.Facts,
		}
	}
	return s.open[o.Name]
}

// Opened returns the providers that are open, by name.
func (s *Service) Opened() []*Backend {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Backend, 0, len(s.open))
	for _, name := range slices.Sorted(maps.Keys(s.open)) {
		all = append(all, s.open[name])
	}
	return all
}

// Of returns the provider of a recorded sandbox. It returns CodeUnavailable if
// this daemon does not use the sandbox's provider, account or address; this
// proves nothing about the sandbox.
func (s *Service) Of(ctx context.Context, b *store.Sandbox) (*Backend, error) {
	be, err := s.Backend(ctx, b.Provider)
	if err != nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "sandbox.find", Subject: b.Name, Cause: err,
			Message: fmt.Sprintf("its provider %s cannot be used: %v", b.Provider, err),
			Hint:    "start the daemon with that provider",
		}
	}
	if !be.Has(b.Binding) {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "sandbox.find", Subject: b.Name,
			Message: fmt.Sprintf("it belongs to %s, but the provider %s uses %s", b.Binding, b.Provider, be.Binding),
			Hint:    "start the daemon with the account and the address that the sandbox was created with",
		}
	}
	return be, nil
}

// Attach returns an unguarded handle on a recorded sandbox.
func (s *Service) Attach(ctx context.Context, b *store.Sandbox) (*engine.Sandbox, error) {
	be, err := s.Of(ctx, b)
	if err != nil {
		return nil, err
	}
	return be.Engine.Attach(ctx, b.ID, b.Name)
}

// Permanent reports whether the provider's sandboxes are machines that belong
// to their users. It is false for a provider that cannot be opened.
func (s *Service) Permanent(ctx context.Context, name string) bool {
	be, err := s.Backend(ctx, name)
	return err == nil && driver.IsPermanent(be.Driver)
}

// Bound returns a spec with those secrets only that Atoll provides, and not the
// provider's service.
func (b *Backend) Bound(spec sandbox.Spec) sandbox.Spec {
	spec.Secrets = slices.DeleteFunc(slices.Clone(spec.Secrets), func(s sandbox.SecretRef) bool { return driver.Holds(b.Driver, s) })
	return spec
}

// SnapshotPauses reports whether a provider pauses a sandbox while it takes a
// snapshot.
func (s *Service) SnapshotPauses(ctx context.Context, name string) bool {
	be, err := s.Backend(ctx, name)
	if err != nil {
		return false
	}
	own, ok := driver.As[driver.SnapshotPauser](be.Driver)
	return ok && own.SnapshotPauses()
}

// Permit returns an error if a caller may not choose a provider.
func (s *Service) Permit(ctx context.Context, who key.Principal, name string) error {
	if s.cfg.Machines != nil {
		if machine, own := s.cfg.Machines.Belongs(ctx, name, who.Tenant); machine && !own {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "provider.open", Subject: name, Message: "there is no such provider", Hint: "see: atoll machine ls"}
		} else if machine {
			return nil
		}
	}
	if _, ok := s.node(name); ok { // requests without a provider may get any
		return nil
	}
	if who.UID == nil && name != "" && name != s.cfg.Default.Name && !slices.Contains(s.cfg.Shared, name) {
		return &sandbox.Error{
			Code: sandbox.CodeDenied, Subject: "provider", Message: "the provider " + name + " is for the owner of the machine only",
			Hint: "leave it out, or have the owner share it with: atoll up --share-provider " + name,
		}
	}
	return nil
}
