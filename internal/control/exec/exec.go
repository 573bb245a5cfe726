// Package exec reaches into running sandboxes: commands, files and ports. The output
// of commands counts against the tenant's quota, and their ends are recorded.
package exec

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandboxes finds the sandboxes to reach into.
type Sandboxes interface {
	// Use returns a running sandbox, by name or id. One that went to sleep
	// because nobody used it is woken first. It counts as used until ctx ends.
	Use(ctx context.Context, ref string) (Use, error)
	// MainEnded is told of the end of every command in the background. It does
	// not wait for what becomes of the sandbox.
	MainEnded(tenant string, id sandbox.ID, process string, began time.Time, exit sandbox.Exit)
}

// Use is a sandbox that is in use.
type Use struct {
	Record store.Sandbox
	Who    key.Principal
	Limits sandbox.Limits // of the tenant
	// Sandbox is the handle for callers: whatever is done with it passes the
	// guard. Inner is the one for what the daemon does by itself.
	Sandbox, Inner *control.Sandbox
}

// Redactors take the values of secrets out of output.
type Redactors interface {
	// Redactor returns nil if nothing is to be taken out of the output of a
	// sandbox.
	Redactor(ctx context.Context, b *store.Sandbox) (*secret.Redactor, error)
}

// Tenants says which credentials are valid, and what a tenant may use. Package
// tenants implements it.
type Tenants interface {
	// KeepAlive returns a context for requests of who. It ends when the key with
	// that ID is no longer valid, or the tenant is disabled.
	KeepAlive(ctx context.Context, who key.Principal, tenant, keyID string) context.Context
	// Valid reports CodeUnauthorized if a key is no longer valid.
	Valid(ctx context.Context, tx *store.Tx, tenant, keyID string) error
	// WithLimits returns a context that holds the limits of the tenant, so that
	// the meter of commands does not read them again.
	WithLimits(ctx context.Context, l sandbox.Limits) context.Context
	// MeterOutput counts bytes of output. It returns how long to wait before more
	// is read.
	MeterOutput(tenant string, l sandbox.Limits, bytes int) time.Duration
}

// Config is what a Service works with.
type Config struct {
	Sandboxes Sandboxes
	Redactors Redactors
	Tenants   Tenants
	// Passes seal the tokens for ports.
	Passes *key.Passes
}

// Service reaches into sandboxes. Its methods may be called concurrently.
type Service struct {
	*core.Core
	cfg   Config
	conns connCount
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service { return &Service{Core: c, cfg: cfg} }

// Handle is a running sandbox of a tenant.
type Handle struct {
	*control.Sandbox
	inner  *control.Sandbox // for what the daemon does by itself
	exec   *Service
	who    key.Principal
	limits sandbox.Limits   // of the tenant when it was opened
	redact *secret.Redactor // of what its commands write; nil: it is shown as it is
}

// Open returns a handle on a running sandbox, by name or id. Every state in which
// it cannot be used has an error of its own. One that went to sleep because nobody
// used it is woken first.
//
// The handle is in use until ctx ends, and good for as long: until then the
// sandbox is not idle.
func (s *Service) Open(ctx context.Context, ref string) (*Handle, error) {
	u, err := s.cfg.Sandboxes.Use(ctx, ref)
	if err != nil {
		return nil, err
	}
	redact, err := s.cfg.Redactors.Redactor(ctx, &u.Record)
	if err != nil {
		return nil, core.Named(ops.SandboxFind, err)
	}
	return &Handle{Sandbox: u.Sandbox, inner: u.Inner, exec: s, who: u.Who, limits: u.Limits, redact: redact}, nil
}
