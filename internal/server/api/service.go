// Package api is Atoll's native HTTP API. It has JSON requests and responses,
// described by an OpenAPI 3.1 document that is generated from the same code,
// byte streams for files and archives, WebSockets for commands, and server-sent
// events for the event log.
//
// It has no logic of its own: it calls the control plane through [Services].
// Package server authenticates the caller and puts the identity into the
// context of the request.
package api

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Services are the control services that carry out requests. All methods may be
// called concurrently. Their errors are *sandbox.Error or are classified by
// sandbox.CodeOf. A ref is the name or the id of a sandbox.
type Services struct {
	Sandboxes      Sandboxes
	Processes      Processes
	Snapshots      Snapshots
	Keys           Keys
	Profiles       Profiles
	Secrets        Secrets
	Events         Events
	Workspaces     Workspaces
	Tenants        Tenants
	Providers      Providers
	Machine        Machine
	Machines       Machines
	Nodes          Nodes
	Ports          Ports
	Streams        Streams
	Desktops       Desktops
	Recordings     Recordings
	Code           Code
	Source         Source
	PublishedPorts PublishedPorts
	Templates      Templates
	Policies       Policies
	Sessions       Sessions
	Holders        Holders
	Movers         Movers
}

// Sandboxes creates, changes and removes sandboxes.
type Sandboxes interface {
	// Create makes a sandbox. replayed says that an earlier request with the
	// same idempotency key made it.
	Create(ctx context.Context, req sandbox.CreateRequest) (s sandbox.Sandbox, replayed bool, err error)
	Get(ctx context.Context, ref string) (sandbox.Sandbox, error)
	List(ctx context.Context, q sandbox.ListQuery) (page []sandbox.Sandbox, next string, err error)
	Destroy(ctx context.Context, ref string) error
	// Stop sends SIGTERM to the commands, waits for at most grace, and stops the
	// sandbox. Its files are kept if the provider can do that: the returned state
	// is then Stopped.
	Stop(ctx context.Context, ref string, grace time.Duration) (sandbox.Sandbox, error)
	Start(ctx context.Context, ref string) (sandbox.Sandbox, error)
	Pause(ctx context.Context, ref string, toDisk bool) (sandbox.Sandbox, error)
	Resume(ctx context.Context, ref string) (sandbox.Sandbox, error)
	Update(ctx context.Context, ref string, c sandbox.Change) (sandbox.Sandbox, error)
	Fork(ctx context.Context, ref string, req durable.ForkRequest) ([]sandbox.Sandbox, error)
	Wait(ctx context.Context, ref string) (sandbox.Exit, error)
	Usage(ctx context.Context, ref string) (sandbox.Usage, error)
	// Network returns which hosts a sandbox may reach.
	Network(ctx context.Context, ref string) (sandbox.Network, error)
}

// Processes opens running sandboxes.
type Processes interface {
	// Open returns a running sandbox.
	Open(ctx context.Context, ref string) (Sandbox, error)
}

// Snapshots manages snapshots.
type Snapshots interface {
	CreateSnapshot(ctx context.Context, ref string, req durable.SnapshotRequest) (durable.Snapshot, error)
	GetSnapshot(ctx context.Context, ref string) (durable.Snapshot, error)
	ListSnapshots(ctx context.Context, q sandbox.ListQuery) (page []durable.Snapshot, next string, err error)
	RemoveSnapshot(ctx context.Context, ref string) error
	// ExportSnapshot writes a snapshot as a tar archive. An error before the first
	// byte is the answer to the request.
	ExportSnapshot(ctx context.Context, ref string, w io.Writer) error
	// ImportSnapshot reads an archive of ExportSnapshot.
	ImportSnapshot(ctx context.Context, name string, labels map[string]string, r io.Reader) (durable.Snapshot, error)
	PruneSnapshots(ctx context.Context, labels map[string]string) ([]durable.Snapshot, error)
}

// Keys manages the API keys of a tenant.
type Keys interface {
	CreateKey(ctx context.Context, k operator.NewKey) (operator.Key, error)
	Keys(ctx context.Context) ([]operator.Key, error)
	RevokeKey(ctx context.Context, id string) error
	// Caller returns who makes the request. Everybody may ask.
	Caller(ctx context.Context) (operator.Caller, error)
}

// Profiles manages egress profiles.
type Profiles interface {
	Create(ctx context.Context, p sandbox.Profile) (durable.StoredProfile, error)
	// Apply stores a new version and applies it to running sandboxes. If ifVersion
	// is not 0, it must be the present version.
	Apply(ctx context.Context, ifVersion int64, p sandbox.Profile) (durable.StoredProfile, error)
	Get(ctx context.Context, name string, version int64) (durable.StoredProfile, error)
	List(ctx context.Context) ([]durable.StoredProfile, error)
	Remove(ctx context.Context, name string) error
	// Test checks a request against a profile. An empty method is GET.
	Test(ctx context.Context, name, method, url string) (operator.Explanation, error)
}

// Secrets manages secrets. No method returns a value.
type Secrets interface {
	// Create and Rotate overwrite the value in their argument with zeros.
	Create(ctx context.Context, s durable.NewSecret) (durable.StoredSecret, error)
	Rotate(ctx context.Context, name string, v durable.SecretValue) (durable.StoredSecret, error)
	List(ctx context.Context) ([]durable.StoredSecret, error)
	Remove(ctx context.Context, name string, force bool) error
}

// Events reads the event log.
type Events interface {
	Events(ctx context.Context, q sandbox.EventQuery) ([]sandbox.Event, error)
	FollowEvents(ctx context.Context, q sandbox.EventQuery) (iter.Seq2[sandbox.Event, error], error)
	// ExportEvents writes the matching events as JSON lines, up to the end of the
	// log. ExportOTLP writes them in OTLP, for OpenTelemetry collectors.
	ExportEvents(ctx context.Context, q sandbox.EventQuery, w io.Writer) error
	ExportOTLP(ctx context.Context, q sandbox.EventQuery, w io.Writer) error
	VerifyAudit(ctx context.Context) (operator.AuditReport, error)
	PruneAudit(ctx context.Context, in operator.AuditPrune) (operator.AuditPruned, error)
}

// Workspaces manages durable directories. Their names are unique within the
// tenant.
type Workspaces interface {
	CreateWorkspace(ctx context.Context, n durable.NewWorkspace) (durable.Workspace, error)
	Workspaces(ctx context.Context) ([]durable.Workspace, error)
	Workspace(ctx context.Context, name string) (durable.Workspace, error)
	RemoveWorkspace(ctx context.Context, name string) error
	WorkspaceHistory(ctx context.Context, name string) ([]durable.WorkspaceVersion, error)
	WorkspaceDiff(ctx context.Context, name string, from, to int) (changes []durable.WorkspaceChange, more bool, err error)
	PersistWorkspace(ctx context.Context, name, note string) (durable.WorkspaceVersion, error)
	RestoreWorkspace(ctx context.Context, name string, version int, note string) (durable.WorkspaceVersion, error)
	PruneWorkspace(ctx context.Context, name string, last int, within time.Duration) (durable.WorkspacePruned, error)
	VerifyWorkspace(ctx context.Context, name string, deep bool) (durable.WorkspaceReport, error)
}

// Tenants manages tenants and their limits.
type Tenants interface {
	// OwnTenant returns the caller's tenant. The other methods are for the owner of
	// the machine.
	OwnTenant(ctx context.Context) (operator.Tenant, error)
	Tenants(ctx context.Context) ([]operator.Tenant, error)
	Tenant(ctx context.Context, id string) (operator.Tenant, error)
	CreateTenant(ctx context.Context, t operator.NewTenant) (operator.Tenant, error)
	UpdateTenant(ctx context.Context, id string, c operator.TenantChange) (operator.Tenant, error)
}

// Providers describes and selects providers.
type Providers interface {
	// Providers describes all providers.
	Providers(ctx context.Context) ([]catalog.Provider, error)
	// ChooseProvider selects a provider for the needs of a sandbox.
	ChooseProvider(ctx context.Context, n catalog.Needs) (catalog.Choice, error)
}

// Machine has operations for the owner of the machine.
type Machine interface {
	// Backup returns a copy of the database, which the caller closes.
	Backup(ctx context.Context) (io.ReadCloser, error)
	// ImageUses is for the owner of the machine.
	ImageUses(ctx context.Context) ([]operator.ImageUse, error)
	// ImportImage stores an image that another daemon sends, under its digest. It
	// is for the owner of the machine, and for keys of the tenant default.
	ImportImage(ctx context.Context, digest string, r io.Reader) error
	// Diagnose is for the owner of the machine.
	Diagnose(ctx context.Context) (operator.Diagnosis, error)
	// EnableE2B makes the daemon serve the E2B API, now and after later starts.
	// DisableE2B ends that. Both are for the owner of the machine.
	EnableE2B(ctx context.Context, s operator.E2BSettings) (operator.E2BPlace, error)
	DisableE2B(ctx context.Context) error
	// OpenConsole makes the daemon serve the web console, now and after later
	// starts, and returns a link that signs in once. It is for the owner of the
	// machine.
	OpenConsole(ctx context.Context, s operator.ConsoleSettings) (operator.ConsoleLink, error)
	// EgressSettings returns fingerprints of the owner's settings for all networks.
	// It is for the owner of the machine.
	EgressSettings(ctx context.Context) (map[string]string, error)
	// Load returns the free capacity of the daemon.
	Load(ctx context.Context) (operator.Load, error)
	// Ready returns an error if the daemon cannot make sandboxes.
	Ready(ctx context.Context) error
}

// Sandbox is a running sandbox.
type Sandbox interface {
	ID() sandbox.ID
	Name() string
	// HasNetwork reports whether it may reach anything. Rules decide what.
	HasNetwork() bool
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
	driver.ProcessManager
	driver.Rejoiner
	Files() Files
}

// Files are the files of a sandbox.
type Files interface {
	driver.FileSystem
	driver.Archiver
	driver.Watcher
}
