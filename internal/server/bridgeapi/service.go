// Package bridgeapi serves the protocol of the bridge of Cloudflare's
// sandboxes, for clients such as the CloudflareSandboxClient of OpenAI's Agents
// SDKs. It translates requests to calls of [Services], where policies, quotas
// and the audit log apply as for every other API.
//
// A client may use any id: a sandbox that does not exist is created. The sandbox
// of an id is called "bridge-" and the id, so that it is one per tenant.
package bridgeapi

import (
	"context"
	"net"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Services carries out requests. All methods and functions may be called
// concurrently; their errors are *sandbox.Error or are classified by
// sandbox.CodeOf. A ref is the name or the id of a sandbox.
type Services struct {
	// Authenticate returns the context for requests with an API key, and the
	// tenant of the key.
	Authenticate func(ctx context.Context, key string) (_ context.Context, tenant string, err error)
	// Open returns a running sandbox. A paused sandbox is resumed first.
	Open func(ctx context.Context, ref string) (Sandbox, error)
	// Allow returns CodeDenied, and records that, if the caller may not carry out an
	// operation.
	Allow func(ctx context.Context, op ops.Op) error
	// HasImage reports whether an image is on this machine.
	HasImage  func(ctx context.Context, ref string) (bool, error)
	Sandboxes Sandboxes
	Templates Templates
	Profiles  Profiles
	Ports     Ports
	Entrance  Entrance
}

// Sandboxes creates, describes and removes sandboxes.
type Sandboxes interface {
	// CreateFor creates a sandbox that ends after timeout, or without a limit if
	// that is zero.
	CreateFor(ctx context.Context, spec sandbox.Spec, timeout time.Duration) (sandbox.Sandbox, error)
	Inspect(ctx context.Context, ref string) (sandbox.Detail, error)
	// Start runs a stopped sandbox again, with its files.
	Start(ctx context.Context, ref string) (sandbox.Sandbox, error)
	Update(ctx context.Context, ref string, c sandbox.Change) (sandbox.Sandbox, error)
	Destroy(ctx context.Context, ref string) error
}

// Ports reaches ports of sandboxes.
type Ports interface {
	// DialPort connects to a port. The caller closes the connection.
	DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error)
	// SharePorts makes a token for ports, if the caller may.
	SharePorts(ctx context.Context, ref string, ports []uint16, life time.Duration) (token string, expires time.Time, err error)
}

// Entrance is for callers that know the address of a tunnel and have no API
// key. This package checks the address.
type Entrance interface {
	// Enter returns a sandbox of any tenant, and the context for its own requests.
	Enter(ctx context.Context, id sandbox.ID, keyID string) (context.Context, sandbox.Sandbox, error)
}

// Templates gives access to the templates of a tenant.
type Templates interface {
	Templates(ctx context.Context) ([]durable.Template, error)
}

// Profiles gives access to the egress profiles of a tenant.
type Profiles interface {
	// Get returns a version of a profile, the newest for 0.
	Get(ctx context.Context, name string, version int64) (durable.StoredProfile, error)
}

// Sandbox is a running sandbox.
type Sandbox interface {
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
	// Processes, Reconnect and Kill are those of driver.ProcessManager.
	Processes(ctx context.Context) ([]sandbox.ProcessInfo, error)
	Reconnect(ctx context.Context, id string) (driver.Process, error)
	Kill(ctx context.Context, id string, sig int) error
	Files() Files
}

// Files are the files of a sandbox.
type Files interface {
	driver.FileSystem
	driver.Archiver
}
