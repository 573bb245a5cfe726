// Package exec runs commands in sandboxes, and accesses their files and ports.
// It counts the output of commands against the tenant's quota, and records when
// they end.
package exec

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Sandboxes finds running sandboxes.
type Sandboxes interface {
	// Use returns a running sandbox, by name or id. If its idle policy paused it,
	// it is resumed first. It counts as used until ctx ends.
	Use(ctx context.Context, ref string) (Use, error)
	// MainEnded is called at the end of every background command. It does not wait
	// for the consequences.
	MainEnded(tenant string, id sandbox.ID, process string, began time.Time, exit sandbox.Exit)
}

// Use is a sandbox in use.
type Use struct {
	Record store.Sandbox
	Who    key.Principal
	Limits operator.Limits // of the tenant
	// Sandbox is the handle for callers, which passes the guard. Inner is the
	// handle for the daemon itself.
	Sandbox, Inner *engine.Sandbox
}

// Redactors provides redactors for output.
type Redactors interface {
	// Redactor returns nil if the output of a sandbox is not redacted.
	Redactor(ctx context.Context, b *store.Sandbox) (*secret.Redactor, error)
}

// Tenants checks credentials and limits of tenants. Package tenants implements
// it.
type Tenants interface {
	// KeepAlive returns a context for requests of who. It ends when the key with
	// that ID is no longer valid, or the tenant is disabled.
	KeepAlive(ctx context.Context, who key.Principal, tenant, keyID string) context.Context
	// Valid returns CodeUnauthorized if a key is no longer valid.
	Valid(ctx context.Context, tx *store.Tx, tenant, keyID string) error
	// WithLimits returns a context with the limits of the tenant, so that they are
	// not read again.
	WithLimits(ctx context.Context, l operator.Limits) context.Context
	// MeterOutput counts bytes of output. It returns how long to wait before
	// reading more.
	MeterOutput(tenant string, l operator.Limits, bytes int) time.Duration
}

// Config configures a Service.
type Config struct {
	Sandboxes Sandboxes
	Redactors Redactors
	Tenants   Tenants
	// Passes encrypt the tokens for ports.
	Passes *key.Passes
}

// Service accesses running sandboxes. It is safe for concurrent use.
type Service struct {
	*core.Core
	cfg   Config
	conns connCount
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service { return &Service{Core: c, cfg: cfg} }

// Handle is a running sandbox of a tenant, opened by Open.
type Handle struct {
	*engine.Sandbox
	inner  *engine.Sandbox // unguarded, for the daemon itself
	exec   *Service
	who    key.Principal
	limits operator.Limits  // of the tenant, when the handle was opened
	redact *secret.Redactor // for the output of its commands; nil: output is not redacted
	wired  bool             // it has a network
}

// HasNetwork reports whether the sandbox may reach anything. Rules decide what.
func (h *Handle) HasNetwork() bool { return h.wired }

// Redactor returns what removes secrets from the output of the sandbox; nil if
// its output is not redacted.
func (h *Handle) Redactor() *secret.Redactor { return h.redact }

// Open returns a handle on a running sandbox, by name or id. If its idle policy
// paused the sandbox, it is resumed first. For each other state in which it
// cannot be used, there is a specific error.
//
// The handle is valid until ctx ends. Until then the sandbox is not idle.
func (s *Service) Open(ctx context.Context, ref string) (*Handle, error) {
	u, err := s.cfg.Sandboxes.Use(ctx, ref)
	if err != nil {
		return nil, err
	}
	redact, err := s.cfg.Redactors.Redactor(ctx, &u.Record)
	if err != nil {
		return nil, core.Named(ops.SandboxFind, err)
	}
	return &Handle{Sandbox: u.Sandbox, inner: u.Inner, exec: s, who: u.Who, limits: u.Limits, redact: redact, wired: u.Record.Spec.Network.Asked()}, nil
}
