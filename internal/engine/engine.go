// Package engine turns requests into calls of one provider. Every request passes
// through it: the request is validated, defaults are filled in, the guard is
// called, a driver runs the action, and an error is wrapped once into a
// *sandbox.Error.
//
// The services of the daemon (internal/control/...) and the command line without
// a daemon use these calls, so no rule can be bypassed by choosing another
// interface.
package engine

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// defaultTeardown limits the removal of a sandbox whose caller has gone.
const defaultTeardown = 30 * time.Second

// Action is one operation that the guard decides about.
type Action struct {
	Op      ops.Op
	Sandbox sandbox.ID // empty if the action has no sandbox
	Name    string     // name of the sandbox, if known
	Subject string     // what is accessed: a name, a path, a process; never a secret
	// Command is the command of process.exec. Its environment may contain secrets.
	Command *sandbox.Command
}

// Config configures an Engine. Only Provider is required.
type Config struct {
	// Provider creates the sandboxes. Its owner closes it after the last call of
	// the Engine has returned.
	Provider driver.Provider
	// Images provides images and their configuration. Nil knows only "host".
	Images Images
	// Defaults are used for resources that a request leaves at zero. If they are
	// zero too, the provider decides.
	Defaults sandbox.Resources
	// Facts returns the provider's capabilities, as found by its Probe. Nil: Probe
	// is called each time.
	Facts func(context.Context) (driver.Facts, error)
	// Workspaces means that the caller attaches workspaces. Otherwise requests
	// with workspaces are refused.
	Workspaces bool
	// Guard runs every action: it calls act once, or returns the reason for
	// refusing. Nil allows everything: the caller owns the machine.
	Guard func(ctx context.Context, a Action, act func(context.Context) error) error
	// LockNames prevents all other creators of sandboxes on this node, in any
	// process, from using a name until release is called. Nil: a lock in this
	// process only.
	LockNames func(context.Context) (release func(), err error)
	// Owner marks sandboxes that must not outlive their creator. Nil: this
	// process.
	Owner Owner
	// Now returns the time. Nil: time.Now.
	Now func() time.Time
	// NewID returns a new, unique sandbox id. Nil: random ids.
	NewID func() sandbox.ID
	// Teardown limits the removal of a sandbox whose caller has gone. Zero: 30
	// seconds.
	Teardown time.Duration
}

// Engine drives one provider on one node. It is safe for
// concurrent use.
type Engine struct {
	cfg   Config
	names sync.Mutex // the default for LockNames
}

// New returns an Engine. It panics without a provider, which is a programming
// error.
func New(cfg Config) *Engine {
	if cfg.Provider == nil {
		panic("engine: no provider")
	}
	e := &Engine{cfg: cfg}
	if e.cfg.Now == nil {
		e.cfg.Now = time.Now
	}
	if e.cfg.Facts == nil {
		e.cfg.Facts = e.cfg.Provider.Probe
	}
	if e.cfg.NewID == nil {
		e.cfg.NewID = randomID
	}
	if e.cfg.Teardown <= 0 {
		e.cfg.Teardown = defaultTeardown
	}
	if e.cfg.Owner == nil {
		e.cfg.Owner = thisProcess
	}
	if e.cfg.LockNames == nil {
		e.cfg.LockNames = func(context.Context) (func(), error) {
			e.names.Lock()
			return e.names.Unlock, nil
		}
	}
	return e
}

// do passes an action to the guard. Every action goes through it.
func (e *Engine) do(ctx context.Context, a Action, act func(context.Context) error) error {
	drive := func(ctx context.Context) error { return span.In(ctx, "driver", string(a.Op), a.Sandbox, act) }
	if e.cfg.Guard != nil {
		return e.wrap(a, e.cfg.Guard(ctx, a, drive))
	}
	return e.wrap(a, drive(ctx))
}

// Guarded returns a handle on the same sandbox whose actions pass a guard; see
// Config.Guard.
func (s *Sandbox) Guarded(guard func(ctx context.Context, a Action, act func(context.Context) error) error) *Sandbox {
	own := *s
	own.e = &Engine{cfg: s.e.cfg}
	own.e.cfg.Guard = guard
	return &own
}

// Probe returns the capabilities of the provider.
func (e *Engine) Probe(ctx context.Context) (driver.Facts, error) {
	var facts driver.Facts
	err := e.do(ctx, Action{Op: ops.ProviderProbe}, func(ctx context.Context) (err error) {
		facts, err = e.cfg.Provider.Probe(ctx)
		return err
	})
	return facts, err
}

// Describe fills in what the provider says about itself.
func (e *Engine) Describe(ctx context.Context, p *catalog.Provider) error {
	facts, err := e.Probe(ctx)
	driver.Describe(e.cfg.Provider, facts, p)
	return err
}

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// randomID has 65 random bits: enough to be unique, and short enough to type.
func randomID() sandbox.ID {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails: it crashes the program instead
	return sandbox.ID("sb-" + strings.ToLower(idEncoding.EncodeToString(b[:]))[:13])
}
