// Package e2bapi is Atoll's API for programs that were written for E2B: its
// control plane over REST, and its data plane, which the SDKs expect inside every
// sandbox and which the daemon serves in its place.
//
// It translates E2B's protocol. [Services] is the part of the control plane
// that it needs. Policies, quotas and the audit log apply there as for every
// other API. Features of E2B that Atoll lacks are refused with error_code
// "atoll_unsupported".
package e2bapi

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Services handles requests. All methods and functions may be called
// concurrently; their errors are *sandbox.Error or are classified by
// sandbox.CodeOf. A ref is the name or the id of a sandbox.
type Services struct {
	// Authenticate returns the context for requests with an API key, and the
	// tenant of the key.
	Authenticate func(ctx context.Context, key string) (_ context.Context, tenant string, err error)
	// Open returns a running sandbox.
	Open func(ctx context.Context, ref string) (Sandbox, error)
	// HasImage reports whether an image is on this machine.
	HasImage func(ctx context.Context, ref string) (bool, error)
	// ECRLogin exchanges AWS keys for a login to the registry of their account,
	// which must contain the image.
	ECRLogin func(ctx context.Context, image, accessKey string, secret func() string, region string) (func() (username, password string), error)
	// Defaults returns the user and working directory of an image on this machine;
	// empty if it sets none.
	Defaults    func(ctx context.Context, digest string) (user, dir string, err error)
	Sandboxes   Sandboxes
	Lifecycle   Lifecycle
	Networks    Networks
	Usage       Usage
	Ports       Ports
	Interpreter Interpreter
	Entrance    Entrance
	Rights      Rights
	Snapshots   Snapshots
	Events      Events
	Secrets     Secrets
	Templates   Templates
	Builder     Builder
	Workspaces  Workspaces
	Identity    Identity
}

// Identity publishes how to verify identity tokens of sandboxes.
type Identity interface {
	// Available returns an error if there are no identity tokens.
	Available() error
	// Published returns the public documents, by path.
	Published() map[string]func() (any, error)
}

// Sandboxes creates, describes and removes sandboxes.
type Sandboxes interface {
	// CreateFor creates a sandbox that ends after timeout, unless Expire sets
	// another time.
	CreateFor(ctx context.Context, spec sandbox.Spec, timeout time.Duration) (sandbox.Sandbox, error)
	Inspect(ctx context.Context, ref string) (sandbox.Detail, error)
	// InspectAll returns all sandboxes with the labels, in any order.
	InspectAll(ctx context.Context, labels map[string]string) ([]sandbox.Detail, error)
	Destroy(ctx context.Context, ref string) error
	// Expire sets when a sandbox ends; with extend only to a later time.
	Expire(ctx context.Context, ref string, at time.Time, extend bool) (sandbox.Sandbox, error)
}

// Lifecycle pauses, stops and resumes sandboxes.
type Lifecycle interface {
	Stop(ctx context.Context, ref string, grace time.Duration) (sandbox.Sandbox, error)
	Start(ctx context.Context, ref string) (sandbox.Sandbox, error)
	Pause(ctx context.Context, ref string, toDisk bool) (sandbox.Sandbox, error)
	Resume(ctx context.Context, ref string) (sandbox.Sandbox, error)
	// Reboot starts a paused or stopped sandbox from its files, without its memory.
	Reboot(ctx context.Context, ref string) (sandbox.Sandbox, error)
	// Fork copies a running sandbox.
	Fork(ctx context.Context, ref string, req durable.ForkRequest) ([]sandbox.Sandbox, error)
}

// Networks changes the network settings of sandboxes.
type Networks interface {
	SetNetwork(ctx context.Context, ref string, n sandbox.Network) (sandbox.Sandbox, error)
}

// Usage returns the resource usage of a running sandbox.
type Usage interface {
	Usage(ctx context.Context, ref string) (sandbox.Usage, error)
}

// Ports connects to ports of sandboxes. The caller closes the connection.
type Ports interface {
	DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error)
}

// Entrance admits callers with the token of a sandbox instead of an API key.
// This package checks the token.
type Entrance interface {
	// Enter returns a sandbox of any tenant, and the context for requests with a
	// token of it that was given to a key. They have the rights of that key, and end
	// with it. Without a key, the requests are the daemon's own.
	Enter(ctx context.Context, id sandbox.ID, keyID string) (context.Context, sandbox.Sandbox, error)
	// Keys returns the keys with which tokens of a sandbox are valid.
	Keys(ctx context.Context, id sandbox.ID) ([]string, error)
	// Mounted returns which workspaces a sandbox of any tenant has, and where.
	Mounted(ctx context.Context, id sandbox.ID) ([]sandbox.WorkspaceMount, error)
	// Live returns the running sandboxes of all tenants.
	Live(ctx context.Context) ([]sandbox.ID, error)
}

// Rights are the rights of the caller of a request.
type Rights interface {
	// Key returns the public part of the caller's key.
	Key(ctx context.Context) string
	// Allow returns CodeDenied, and records that, if the caller may not use an
	// operation. id may be empty.
	Allow(ctx context.Context, id sandbox.ID, op ops.Op) error
}

// Snapshots creates and lists snapshots of sandboxes.
type Snapshots interface {
	CreateSnapshot(ctx context.Context, ref string, req durable.SnapshotRequest) (durable.Snapshot, error)
	// ListSnapshots returns a page, newest first, and the cursor of the next one.
	ListSnapshots(ctx context.Context, q sandbox.ListQuery) (page []durable.Snapshot, next string, err error)
	RemoveSnapshot(ctx context.Context, ref string) error
}

// Events reads the event log.
type Events interface {
	Events(ctx context.Context, q sandbox.EventQuery) ([]sandbox.Event, error)
}

// Secrets stores values that the gateway adds to requests of sandboxes. No
// method returns a value.
type Secrets interface {
	// Create and Rotate clear the value they are given. Rotate keeps labels that are
	// nil.
	Create(ctx context.Context, s durable.NewSecret) (durable.StoredSecret, error)
	Rotate(ctx context.Context, name string, v durable.SecretValue) (durable.StoredSecret, error)
	// List returns all, by name.
	List(ctx context.Context) ([]durable.StoredSecret, error)
	Remove(ctx context.Context, name string, force bool) error
}

// Templates manages the names of templates. A ref is NAME:TAG.
type Templates interface {
	// Templates returns those of the caller's tenant.
	Templates(ctx context.Context) ([]durable.Template, error)
	// Template takes TENANT/NAME:TAG too, for a public one of another tenant.
	Template(ctx context.Context, ref string) (durable.Template, error)
	// PublishTemplate lets other tenants use all tags of a name, or ends that.
	PublishTemplate(ctx context.Context, name string, public bool) (durable.Visibility, error)
	// TagTemplate gives a template another name.
	TagTemplate(ctx context.Context, ref, as string) (durable.Template, error)
	RemoveTemplate(ctx context.Context, ref string) error
}

// Builder builds templates.
type Builder interface {
	// BuildTemplate calls req.Log from one goroutine at a time.
	BuildTemplate(ctx context.Context, req template.NamedRequest) (durable.Template, error)
}

// Workspaces manages durable directories, which E2B calls volumes.
type Workspaces interface {
	CreateWorkspace(ctx context.Context, n durable.NewWorkspace) (durable.Workspace, error)
	Workspaces(ctx context.Context) ([]durable.Workspace, error)
	RemoveWorkspace(ctx context.Context, name string) error
	// EnterWorkspace returns a workspace of any tenant, and the context for requests
	// with its token, which this package checks, and which was given to a key.
	EnterWorkspace(ctx context.Context, id, keyID string) (context.Context, durable.Workspace, error)
	// ReadWorkspace and WriteWorkspace call do with the directory of a workspace.
	// It is not removed meanwhile.
	ReadWorkspace(ctx context.Context, name string, do func(*os.Root) error) error
	WriteWorkspace(ctx context.Context, name string, do func(*os.Root) error) error
}

// Sandbox is a running sandbox.
type Sandbox interface {
	ID() sandbox.ID
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
	driver.ProcessManager
	Files() Files
}

// Files are the files of a sandbox.
type Files interface {
	driver.FileSystem
	driver.Watcher
	driver.Overwriter // may be unsupported, as Describer
	driver.Describer
}
