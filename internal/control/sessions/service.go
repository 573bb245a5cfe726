// Package sessions is the control service for sessions. An agent uses a session
// instead of a sandbox. A session has a name and a Spec, and always leads to
// the one sandbox that serves it now.
//
// Packages lease and session define who may make, use and end that sandbox.
// This package connects them to the store and to the sandboxes of this daemon.
package sessions

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Sandboxes is the part of the sandbox service that sessions need. A ref is an
// id. CodeGone proves that the sandbox is gone.
type Sandboxes interface {
	// Make makes a sandbox. With the same idempotency key it returns the same
	// sandbox. The workspaces of the sandbox that it replaces, if any, are shared
	// with it.
	Make(ctx context.Context, spec sandbox.Spec, key string, replaces sandbox.ID) (sandbox.ID, error)
	// Isolation returns the weakest isolation that a sandbox of a tenant may have.
	Isolation(tenant string, spec *sandbox.Spec) sandbox.Isolation
	// Reach checks with the provider that a sandbox runs.
	Reach(ctx context.Context, ref string) error
	Resume(ctx context.Context, ref string) (store.Sandbox, error)
	Start(ctx context.Context, ref string) (store.Sandbox, error)
	Pause(ctx context.Context, ref string, toDisk bool) (store.Sandbox, error)
	Destroy(ctx context.Context, ref string) error
	// TakeOver records a sandbox that another installation made with the same
	// account, address or machine. CodeGone: it ended.
	TakeOver(ctx context.Context, tenant, binding string, spec sandbox.Spec) (store.Sandbox, error)
	// Files returns access to the files of a running sandbox, until ctx ends.
	Files(ctx context.Context, ref string) (engine.Files, error)
	// Flush stores what recordings of a sandbox have until now.
	Flush(ctx context.Context, id sandbox.ID)
}

// Providers are those that a session can move to.
type Providers interface {
	Providers(ctx context.Context) ([]catalog.Provider, error)
	// Binding returns the binding of a provider.
	Binding(ctx context.Context, provider string) (string, error)
	// Present returns the present name of a binding in a record.
	Present(ctx context.Context, provider, binding string) string
	// Facts returns the known capabilities of a provider.
	Facts(ctx context.Context, provider string) (driver.Facts, error)
	// CheckImage refuses an image that a provider does not support. An empty image
	// is the provider's default.
	CheckImage(ctx context.Context, provider, image string) error
	// Permanent reports whether the sandboxes of a provider are machines of their
	// users.
	Permanent(ctx context.Context, name string) bool
	// SnapshotPauses reports whether a provider pauses a sandbox while it takes a
	// snapshot of it.
	SnapshotPauses(ctx context.Context, name string) bool
	// OnNode reports whether a provider is a node, with which its snapshots are
	// lost. Accepts reports whether a provider takes new sandboxes, and Place
	// chooses a node.
	OnNode(name string) bool
	Accepts(name string) bool
	Place(spec *sandbox.Spec) (provider, why string, err error)
	// Permit returns an error if the caller may not choose a provider.
	Permit(ctx context.Context, who key.Principal, name string) error
}

// Snapshots saves the files of sandboxes without a workspace.
type Snapshots interface {
	CreateSnapshot(ctx context.Context, ref string, req durable.SnapshotRequest) (durable.Snapshot, error)
	RemoveSnapshot(ctx context.Context, ref string) error
}

// Workspaces saves workspaces.
type Workspaces interface {
	PersistWorkspace(ctx context.Context, name, note string) (durable.WorkspaceVersion, error)
	Workspace(ctx context.Context, name string) (durable.Workspace, error)
}

// Environments stores the environments of sessions, which may be secret, by
// session id.
type Environments interface {
	Put(id sandbox.ID, env map[string]string) error
	Get(id sandbox.ID) (map[string]string, error)
	Remove(id sandbox.ID) error
}

// Config configures a Service.
type Config struct {
	Sandboxes    Sandboxes
	Snapshots    Snapshots
	Providers    Providers
	Workspaces   Workspaces
	Environments Environments
	Machines     Machines
	// Archive stores the files of sandboxes if their provider has no snapshots,
	// encrypted unless Plain is set. Scratch is a directory for temporary files.
	// Nil: such sandboxes cannot be saved.
	Archive *archive.Archive
	Plain   bool
	Scratch string
	// Binding names this installation. It is the binding of sandboxes if their
	// provider has none.
	Binding string
	// Lease contains the durations. The zero value is lease.Default.
	Lease lease.Config
	// Observer observes leases. It may be nil.
	Observer Observer
	// Turns is told of turns. It may be nil.
	Turns Turns
}

// Turns is told when turns hold the sandboxes of sessions whose desktop is
// recorded on turns. Its methods may be called concurrently.
type Turns interface {
	// TurnHolds reports that a turn holds a sandbox at an epoch. It is called again
	// with each heartbeat.
	TurnHolds(s store.Session, turn string, id sandbox.ID, epoch int64)
	// TurnOver reports that a turn was released, or is not recorded any more.
	TurnOver(s store.Session, turn string)
}

// Machines knows the self-hosted machines.
type Machines interface {
	// State returns what the machine of a tenant's provider can do now, nil for a
	// provider that is not a machine's.
	State(ctx context.Context, tenant, provider string) (*catalog.Machine, error)
}

// Observer counts what happens to leases. Its methods may be called concurrently.
type Observer interface {
	// Acquired reports how long a holder waited for the sandbox, and its role,
	// which is "failed" if it got none.
	Acquired(role string, took time.Duration)
	Rotated()     // a sandbox will be replaced before its deadline
	Evicted()     // a sandbox is saved while it has holders
	OrphanEnded() // an unused sandbox was ended
}

type nobody struct{}

func (nobody) Acquired(string, time.Duration)                     {}
func (nobody) Rotated()                                           {}
func (nobody) Evicted()                                           {}
func (nobody) OrphanEnded()                                       {}
func (nobody) TurnHolds(store.Session, string, sandbox.ID, int64) {}
func (nobody) TurnOver(store.Session, string)                     {}

// Services contains the services for sessions. Their methods may be called
// concurrently.
type Services struct {
	Sessions *Service
	Holders  *Holders
	Movers   *Movers
	Reaper   *Reaper
}

// New returns the services. They share the state of requests in progress.
func New(c *core.Core, cfg Config) *Services {
	if cfg.Lease == (lease.Config{}) {
		cfg.Lease = lease.Default()
	}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	if cfg.Turns == nil {
		cfg.Turns = nobody{}
	}
	own := installation(cfg.Binding)
	records := &records{Core: c, environments: cfg.Environments, grace: cfg.Lease.Grace}
	leases := &leases{Core: c, cfg: cfg.Lease, observer: cfg.Observer}
	trees := trees{cfg.Sandboxes}
	archives := &archives{Core: c, own: own, snapshots: cfg.Snapshots, blobs: cfg.Archive, plain: cfg.Plain, scratch: cfg.Scratch, trees: trees}
	provision := &provision{
		Core: c, own: own, sandboxes: cfg.Sandboxes, snapshots: cfg.Snapshots, providers: cfg.Providers, workspaces: cfg.Workspaces,
		leases: leases, archives: archives, observer: cfg.Observer,
	}
	holders := &Holders{
		records: records, leases: leases, provision: provision, present: &presences{leases: leases}, providers: cfg.Providers,
		patience: cfg.Lease.Warming, observer: cfg.Observer, turns: cfg.Turns,
	}
	service := &Service{records: records, holders: holders, provision: provision, archives: archives, providers: cfg.Providers, machines: cfg.Machines}
	return &Services{
		Sessions: service,
		Holders:  holders,
		Movers:   &Movers{records: records, leases: leases, holders: holders, provision: provision, sandboxes: cfg.Sandboxes, providers: cfg.Providers, trees: trees},
		Reaper:   &Reaper{Core: c, leases: leases, holders: holders, provision: provision, archives: archives, sessions: service, grace: cfg.Lease.Grace},
	}
}

func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:16]) }
