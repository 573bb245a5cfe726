// Package e2bapi is Atoll's face for programs that were written for E2B: its
// control plane over REST, and its data plane, which the SDKs find inside every
// sandbox, served by the daemon in the sandbox's stead.
//
// It translates and decides nothing: [Service] is what it needs of the control
// plane, where policy, quotas and the audit log apply as for every other face.
// Features of E2B that Atoll lacks are refused with error_code
// "atoll_unsupported".
package e2bapi

import (
	"context"
	"net"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Services does what requests ask for. The errors of their methods are
// *sandbox.Error or are classified by sandbox.CodeOf.
type Services struct {
	Service
	Snapshots Snapshots
	Templates Templates
}

// Snapshots keeps the state of sandboxes. Its methods may be called
// concurrently.
type Snapshots interface {
	CreateSnapshot(ctx context.Context, ref string, req sandbox.SnapshotRequest) (sandbox.Snapshot, error)
	// ListSnapshots returns a page, newest first, and the cursor of the next one.
	ListSnapshots(ctx context.Context, q sandbox.ListQuery) (page []sandbox.Snapshot, next string, err error)
	RemoveSnapshot(ctx context.Context, ref string) error
}

// Service does what requests ask for. Its methods may be called concurrently;
// their errors are *sandbox.Error or are classified by sandbox.CodeOf.
type Service interface {
	// Authenticate returns the context for requests of whoever bears an API key.
	Authenticate(ctx context.Context, key string) (context.Context, error)
	// Tenant returns whose requests those of a context are.
	Tenant(ctx context.Context) string
	// Create makes a sandbox that ends so long after.
	Create(ctx context.Context, spec sandbox.Spec, timeout time.Duration) (Sandbox, error)
	Get(ctx context.Context, id sandbox.ID) (Sandbox, error)
	// List returns all that have the labels, in any order.
	List(ctx context.Context, labels map[string]string) ([]Sandbox, error)
	Destroy(ctx context.Context, id sandbox.ID) error
	// Expire sets when a sandbox ends; with extend only to a later time.
	Expire(ctx context.Context, id sandbox.ID, at time.Time, extend bool) (Sandbox, error)

	// Pause keeps a sandbox on disk, with its memory or only its files.
	Pause(ctx context.Context, id sandbox.ID, memory bool) error
	// Resume lets a sandbox go on that Pause kept.
	Resume(ctx context.Context, id sandbox.ID, memory bool) (Sandbox, error)
	// Fork makes copies of a running sandbox.
	Fork(ctx context.Context, id sandbox.ID, count int) ([]Sandbox, error)
	// Usage tells what a running sandbox consumes.
	Usage(ctx context.Context, id sandbox.ID) (sandbox.Usage, error)
	// DialPort connects to a port of a sandbox. The caller closes it.
	DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error)

	// SetNetwork replaces what a sandbox may reach.
	SetNetwork(ctx context.Context, id sandbox.ID, n sandbox.Network) error
	Logs
	Secrets
	Images
	Volumes

	// Enter returns what is known of a sandbox of any tenant, and the context
	// for whoever bears its token, which this package checks.
	Enter(ctx context.Context, id sandbox.ID) (context.Context, Sandbox, error)
	// Live returns the sandboxes of all tenants that run.
	Live(ctx context.Context) ([]sandbox.ID, error)
	// Open returns a running sandbox.
	Open(ctx context.Context, id sandbox.ID) (Box, error)
}

// Sandbox describes a sandbox.
type Sandbox struct {
	ID         sandbox.ID
	Name       string
	State      sandbox.State
	Image      string
	Resources  sandbox.Resources
	Labels     map[string]string
	Created    time.Time
	Expires    time.Time // zero: never
	Updated    time.Time
	Lifetime   sandbox.Lifetime
	Network    sandbox.Network
	Workspaces []sandbox.WorkspaceMount
	// Kept says that a snapshot holds its state while it does not run, and
	// Wakes that it goes on when it is used.
	Kept, Wakes bool
}

// Box is a running sandbox.
type Box interface {
	ID() sandbox.ID
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
	driver.ProcessManager
	Files() Files
}

// Files are the files of a sandbox.
type Files interface {
	driver.FileSystem
	driver.Watcher
}
