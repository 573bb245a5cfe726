// Package services assembles the control services of a daemon.
//
// The caller of a request is part of its context ([guard.WithPrincipal]);
// without one, every operation fails. Every action is authorized and recorded
// before it runs, and only sandboxes recorded for the caller's tenant can be
// accessed.
package services

import (
	"context"
	"io"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/events"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/machine"
	"github.com/atoll-run/atoll/internal/control/machines"
	"github.com/atoll-run/atoll/internal/control/nodes"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes"
	"github.com/atoll-run/atoll/internal/control/sandboxes/access"
	"github.com/atoll-run/atoll/internal/control/sandboxes/create"
	"github.com/atoll-run/atoll/internal/control/sandboxes/pause"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/templates"
	"github.com/atoll-run/atoll/internal/control/tenants"
	"github.com/atoll-run/atoll/internal/control/workspaces"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
)

// Config configures the services. Its owner closes its fields after closing the
// services.
type Config struct {
	// Engine configures the creation of sandboxes with the default provider,
	// whose name is Provider.
	Engine   engine.Config
	Provider string
	// Binding and Former belong to the default provider; see providers.Opened.
	Binding string
	Former  []string
	// Open opens the other providers, and Known lists them; see providers.Config.
	Open  func(ctx context.Context, name string) (providers.Opened, error)
	Known []catalog.Provider
	// Shared are the additional providers that callers with an API key may choose.
	// The owner of the machine may choose any.
	Shared []string
	// MachineProviders are those of self-hosted machines. Nil: there are none.
	MachineProviders providers.Machines
	// Nodes are the daemons on which this one makes sandboxes. Nil: there are none.
	Nodes providers.Nodes
	// ImageNames and ImageName are those of machine.Config.
	ImageNames func(ctx context.Context) ([]string, error)
	ImageName  func(image string) string
	// AcceptImage is Accept of machine.Config.
	AcceptImage func(ctx context.Context, digest string, r io.Reader) error
	// Defaults are used for limits that a request leaves at zero, if the provider
	// enforces them.
	Defaults sandbox.Resources
	core.Config
	// Gate limits concurrent creations. Nil: no limit.
	Gate *admission.Gate
	Log  *eventlog.Log
	// OTLP writes records for ExportOTLP. Nil: ExportOTLP is unsupported.
	OTLP events.WriteOTLP
	// Workspaces stores the workspaces. Nil: there are none.
	Workspaces *worktree.Store
	// SaveEvery is how often copies of workspaces are saved; see workspaces.Config.
	SaveEvery time.Duration
	// Buckets mounts buckets for workspaces. Nil: there are none.
	Buckets workspaces.Buckets
	// Scratch is a directory for temporary files.
	Scratch string
	// Passes encrypts the tokens for ports. Nil: tokens are valid until the
	// process ends.
	Passes *key.Passes
	// Environments stores the environment variables of sandboxes and snapshots.
	Environments snapshots.Environments
	// Archive keeps named snapshots in the blob store, encrypted unless
	// PlainSnapshots is set. SnapshotCache is how many bytes their copies on
	// this machine may take. Nil: they stay on this machine.
	Archive *archive.Archive
	// TemplateImages are saved there, too. Nil: they are not.
	TemplateImages snapshots.Images
	PlainSnapshots bool
	SnapshotCache  int64
	// Sealer encrypts the values of secrets. Nil: none are stored.
	Sealer *secret.Sealer
	// Sources reads secrets that are kept outside the store. Nil: there are none.
	Sources secrets.Sources
	// Gateway enforces network rules. Nil: there is no gateway.
	Gateway profiles.Gateway
	// Operator has the machine owner's settings for all profiles.
	Operator policy.Operator
	// Identities issues identity tokens of sandboxes. Nil: there are none.
	Identities profiles.Identities
	// Policies is the source of the machine's policies.
	Policies policies.Files
	// Recordings stores recordings of terminals before a sandbox is paused. Nil:
	// there are none.
	Recordings pause.Recordings
	// Builder builds templates. Nil: templates cannot be built.
	Builder templates.Builder
	// Builds is a directory for build files.
	Builds string
}

// Services are the control plane of one daemon. They are safe for concurrent
// use.
type Services struct {
	*core.Core
	Sandboxes  *sandboxes.Services
	Providers  *providers.Service
	Exec       *exec.Service
	Workspaces *workspaces.Service
	Tenants    *tenants.Service
	Snapshots  *snapshots.Service
	Events     *events.Service
	Policies   *policies.Service
	Profiles   *profiles.Service
	Secrets    *secrets.Service
	Templates  *templates.Service
	Machine    *machine.Service
	Machines   *machines.Service
	Nodes      *nodes.Service
	Ports      *ports.Service
}

// New returns the services. The caller calls Sandboxes.Reconciler.Reconcile before the
// first request, and finally Close.
func New(cfg Config) *Services {
	if cfg.Passes == nil {
		cfg.Passes = key.NewPasses(key.NewPassKey())
	}
	c := core.New(cfg.Config)
	s := &Services{Core: c, Sandboxes: sandboxes.New(c)}
	s.Tenants = tenants.New(c)
	c.Meter = s.Tenants.MeterExec
	s.Events = events.New(c, cfg.Log, cfg.OTLP)
	s.Workspaces = workspaces.New(c, workspaces.Config{Trees: cfg.Workspaces, Buckets: cfg.Buckets, Sandboxes: s.Sandboxes.Records, Access: s.Tenants, Every: cfg.SaveEvery})
	if cfg.Defaults == (sandbox.Resources{}) {
		cfg.Defaults = cfg.Engine.Defaults
	}
	s.Providers = providers.New(c, providers.Config{
		Default: providers.Opened{Name: cfg.Provider, Binding: cfg.Binding, Former: cfg.Former, Engine: cfg.Engine}, Open: cfg.Open, Known: cfg.Known, Shared: cfg.Shared, Machines: cfg.MachineProviders, Nodes: cfg.Nodes,
		Workspaces: cfg.Workspaces != nil, Defaults: cfg.Defaults,
	})
	s.Snapshots = snapshots.New(c, snapshots.Config{
		Providers: s.Providers, Sandboxes: s.Sandboxes.Records, Environments: cfg.Environments,
		Archive: cfg.Archive, Images: cfg.TemplateImages, Plain: cfg.PlainSnapshots, Cache: cfg.SnapshotCache, Scratch: cfg.Scratch,
	})
	s.Policies = policies.New(c, policies.Config{
		Files: cfg.Policies, Defaults: cfg.Defaults, Images: cfg.Engine.Images, Snapshot: s.Snapshots.Find,
		Changed: func(ctx context.Context) error { return s.Profiles.EnforceAll(ctx) },
	})
	s.Secrets = secrets.New(c, secrets.Config{Sealer: cfg.Sealer, Sources: cfg.Sources, Policies: s.Policies, Gateway: enforcer{s}})
	s.Profiles = profiles.New(c, profiles.Config{
		Gateway: cfg.Gateway, Operator: cfg.Operator, Policies: s.Policies, Secrets: s.Secrets, Sandboxes: s.Sandboxes.Records,
		Identities: cfg.Identities,
	})
	s.Exec = exec.New(c, exec.Config{Sandboxes: used{s.Sandboxes.Opener, s.Sandboxes.Mains}, Redactors: s.Secrets, Tenants: s.Tenants, Passes: cfg.Passes})
	s.Ports = ports.New(c, s.Exec)
	s.Templates = templates.New(c, templates.Config{
		Providers: s.Providers, Sandboxes: built{s.Sandboxes.Creator, s.Sandboxes.Remover}, Exec: s.Exec, Snapshots: s.Snapshots, Policies: s.Policies, Builder: cfg.Builder, Scratch: cfg.Builds,
	})
	s.Machines = machines.New(c)
	s.Nodes = nodes.New(c, s.Sandboxes.Remover)
	s.Machine = machine.New(c, machine.Config{
		Scratch: cfg.Scratch, Sandboxes: s.Sandboxes.Records, Providers: s.Providers, Memory: cfg.Gate.Memory, Images: cfg.ImageNames, ImageName: cfg.ImageName, Accept: cfg.AcceptImage,
	})
	s.Sandboxes.Connect(&sandboxes.Others{
		Providers: s.Providers, Exec: s.Exec, Workspaces: s.Workspaces, Tenants: s.Tenants, Snapshots: s.Snapshots,
		Policies: s.Policies, Profiles: s.Profiles, Secrets: s.Secrets, Templates: s.Templates, Ports: s.Ports, Gate: cfg.Gate,
		Recordings: recordings(cfg.Recordings),
	})
	return s
}

// used are the sandboxes that package exec uses.
type used struct {
	*access.Opener
	*supervise.Mains
}

// built are the sandboxes in which templates are built.
type built struct {
	*create.Creator
	*remove.Remover
}

// CreateForBuild implements templates.Sandboxes.
func (b built) CreateForBuild(ctx context.Context, spec sandbox.Spec, base []string) (sandbox.ID, error) {
	made, err := b.Create(ctx, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: spec, Pull: string(engine.PullNever)}, Base: base, Bound: true})
	return made.ID, err
}

// recordings returns r, or Recordings without any.
func recordings(r pause.Recordings) pause.Recordings {
	if r == nil {
		return none{}
	}
	return r
}

type none struct{}

func (none) Flush(context.Context, sandbox.ID) {}

// enforcer implements secrets.Enforcer for a service that is created before the
// implementation.
type enforcer struct{ s *Services }

func (e enforcer) Enforce(ctx context.Context, all []store.Sandbox) error {
	return e.s.Profiles.Enforce(ctx, all)
}
