// Package plane is the control plane of a daemon: what package control does
// for the owner of a machine, done for many tenants, with a memory that
// outlives the process.
//
// Who is asking is part of the context ([WithPrincipal]); without it nothing is
// done. Every action is authorised and recorded before it happens, and only a
// sandbox that the store has under the caller's tenant can be reached. What
// really runs is found by asking the provider, and [Plane.Reconcile] brings the
// store's opinion and that truth together.
package plane

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/events"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/templates"
	"github.com/atoll-run/atoll/internal/control/tenants"
	"github.com/atoll-run/atoll/internal/control/workspaces"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
)

// Config is what a Plane works with. Its owner closes what is in it, after the
// Plane is closed.
type Config struct {
	// Control says what makes sandboxes with the default provider, whose name is
	// Provider.
	Control  control.Config
	Provider string
	// Binding is that of the default provider; see providers.Opened.
	Binding string
	// Open opens the others, and Known lists them; see providers.Config.
	Open  func(ctx context.Context, name string) (providers.Opened, error)
	Known []sandbox.Provider
	// Shared are the providers besides the default one that callers with an API
	// key may choose. The owner of the machine may choose any.
	Shared []string
	// Defaults fill the limits that a request leaves at zero, as far as the
	// provider enforces them.
	Defaults sandbox.Resources
	core.Config
	Log *eventlog.Log
	// OTLP writes records for ExportOTLP. Nil: that is unsupported.
	OTLP events.WriteOTLP
	// Workspaces keeps the durable directories of sandboxes. Nil: there are none.
	Workspaces *worktree.Store
	// Buckets are what can be mounted for workspaces that are buckets. Nil: none.
	Buckets workspaces.Buckets
	// Scratch is a directory for files that live for a moment.
	Scratch string
	// Passes seal the tokens for ports. Nil: tokens end with the Plane.
	Passes *key.Passes
	// Environments keep what sandboxes that do not run were made with.
	Environments snapshots.Environments
	// Archive keeps named snapshots in the blob store, encrypted unless
	// PlainSnapshots is set. SnapshotCache is how many bytes their copies on
	// this machine may take. Nil: they stay on this machine.
	Archive        *archive.Archive
	PlainSnapshots bool
	SnapshotCache  int64
	// Sealer encrypts the values of secrets. Nil: none are stored.
	Sealer *secret.Sealer
	// Sources reads secrets that are kept outside. Nil: there are none.
	Sources secrets.Sources
	// Gateway enforces what sandboxes may reach. Nil: nobody is told of
	// changes.
	Gateway profiles.Gateway
	// Operator is what the owner of the machine decides for all profiles.
	Operator policy.Operator
	// Policies say what sandboxes may be.
	Policies policies.Files
	// Builder builds templates. Nil: none are built.
	Builder templates.Builder
	// Builds is a directory for the files of builds.
	Builds string
}

// Plane is the control plane of one daemon. Its methods may be called
// concurrently.
type Plane struct {
	*core.Core
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
	cfg        Config
	locks      core.Locks[sandbox.ID]
	watched    sync.Map // sandbox.ID → *watcher: those that a goroutine waits for
	making     core.Inflight[sandbox.ID]
	uses       uses
	due        due
	// unsettled says that something is known to be half-made.
	unsettled atomic.Bool
	hurry     chan struct{} // tells Watch so
}

// New returns a Plane. The caller calls Reconcile before the first request,
// and Close.
func New(cfg Config) *Plane {
	if cfg.Passes == nil {
		cfg.Passes = key.NewPasses(key.NewPassKey())
	}
	p := &Plane{
		Core: core.New(cfg.Config),
		cfg:  cfg, hurry: make(chan struct{}, 1), due: make(due, 1),
	}
	p.Tenants = tenants.New(p.Core)
	p.Meter = p.Tenants.MeterExec
	p.Events = events.New(p.Core, cfg.Log, cfg.OTLP)
	p.Workspaces = workspaces.New(p.Core, workspaces.Config{Trees: cfg.Workspaces, Buckets: cfg.Buckets, Sandboxes: p, Access: p.Tenants})
	if cfg.Defaults == (sandbox.Resources{}) {
		p.cfg.Defaults = cfg.Control.Defaults
	}
	p.Providers = providers.New(p.Core, providers.Config{
		Default: providers.Opened{Name: cfg.Provider, Binding: cfg.Binding, Control: cfg.Control}, Open: cfg.Open, Known: cfg.Known, Shared: cfg.Shared,
		Workspaces: cfg.Workspaces != nil, Defaults: p.cfg.Defaults,
	})
	p.Snapshots = snapshots.New(p.Core, snapshots.Config{
		Providers: p.Providers, Sandboxes: p, Environments: cfg.Environments,
		Archive: cfg.Archive, Plain: cfg.PlainSnapshots, Cache: cfg.SnapshotCache, Scratch: cfg.Scratch,
	})
	p.Policies = policies.New(p.Core, policies.Config{
		Files: cfg.Policies, Defaults: p.cfg.Defaults, Images: cfg.Control.Images, Snapshot: p.Snapshots.Find,
		Changed: func(ctx context.Context) error { return p.Profiles.EnforceAll(ctx) },
	})
	p.Secrets = secrets.New(p.Core, secrets.Config{Sealer: cfg.Sealer, Sources: cfg.Sources, Policies: p.Policies, Gateway: enforcer{p}})
	p.Profiles = profiles.New(p.Core, profiles.Config{
		Gateway: cfg.Gateway, Operator: cfg.Operator, Policies: p.Policies, Secrets: p.Secrets, Sandboxes: recorded{p},
	})
	p.Exec = exec.New(p.Core, exec.Config{Sandboxes: p, Redactors: p.Secrets, Tenants: p.Tenants, Passes: cfg.Passes})
	p.Templates = templates.New(p.Core, templates.Config{
		Providers: p.Providers, Sandboxes: p, Exec: p.Exec, Snapshots: p.Snapshots, Policies: p.Policies, Builder: cfg.Builder, Scratch: cfg.Builds,
	})
	return p
}

func auditAction(who key.Principal, a control.Action) audit.Action {
	return guard.Action(who, a.Op, core.SubjectOf(a))
}

// How often the store is compared with what really runs: when all is known,
// and when something was found half-made.
const (
	reconcilePeriod = 30 * time.Second
	unsettledPeriod = time.Second
)

// Watch compares the store with what really runs from time to time, until ctx
// ends.
func (p *Plane) Watch(ctx context.Context) {
	for {
		period := reconcilePeriod
		if p.unsettled.Load() {
			period = unsettledPeriod
		}
		select {
		case <-ctx.Done():
			return
		case <-p.hurry:
		case <-time.After(period):
			if err := p.Reconcile(ctx); err != nil && ctx.Err() == nil {
				p.Report(ctx, err)
			}
		}
	}
}

// Creating reports whether this process is creating a sandbox.
func (p *Plane) Creating(id sandbox.ID) bool { return p.making.Has(id) }

// Unsettled makes the next reconciliation come soon.
func (p *Plane) Unsettled() { p.unsettled.Store(true) }

// doubt has the store compared with what really runs soon, because something
// could not be written down.
func (p *Plane) doubt() {
	p.unsettled.Store(true)
	select {
	case p.hurry <- struct{}{}:
	default:
	}
}
