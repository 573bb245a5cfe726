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

// Access says who may still act.
type Access interface {
	// ActAs returns a context for requests of who, which ends when the key with
	// that ID, or the tenant, is not good any more.
	ActAs(ctx context.Context, who key.Principal, tenant, keyID string) context.Context
	// Stands reports CodeUnauthorized if a key is not good any more.
	Stands(ctx context.Context, tx *store.Tx, tenant, keyID string) error
}

// Meter says how long to hold back output, so that a tenant stays within its
// limits.
type Meter interface {
	Output(tenant string, l sandbox.Limits, bytes int) time.Duration
}

// Config is what a Service works with.
type Config struct {
	Sandboxes Sandboxes
	Redactors Redactors
	Access    Access
	Meter     Meter
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

type limitsKey struct{}

// WithLimits returns a context that carries what a tenant may use, for the meter of
// commands.
func WithLimits(ctx context.Context, l sandbox.Limits) context.Context {
	return context.WithValue(ctx, limitsKey{}, l)
}

// LimitsIn returns what WithLimits put into a context.
func LimitsIn(ctx context.Context) (sandbox.Limits, bool) {
	l, ok := ctx.Value(limitsKey{}).(sandbox.Limits)
	return l, ok
}
