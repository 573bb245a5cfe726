// Package control is one node's control plane: the only place where a request
// becomes an action. Every call takes the same road: it is validated, its
// defaults are resolved, it passes the guard, a driver carries it out, and what
// went wrong is wrapped exactly once into a *sandbox.Error.
//
// Every face of Atoll (command line, library, HTTP) ends in these calls, so
// that no rule can be walked around by choosing another face.
package control

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// defaultTeardown bounds the removal of a sandbox whose caller went away.
const defaultTeardown = 30 * time.Second

// Action is what the guard is asked about: one thing to be done to one subject.
type Action struct {
	Op      ops.Op
	Sandbox sandbox.ID // to which sandbox; empty when it is about none
	Name    string     // the name of that sandbox, if it is known
	Subject string     // what is touched: a name, a path, a process; never a secret
	// Command is what process.exec is to run. Its environment may be secret.
	Command *sandbox.Command
}

// Config is what a Control works with. Only Provider is required.
type Config struct {
	// Provider makes the sandboxes. Its owner closes it, after the Control
	// has returned from its last call.
	Provider driver.Provider
	// Images finds out what an image wants to run. Nil knows only "host".
	Images Images
	// Defaults fill the resources a request leaves at zero. Those that are
	// zero here too are left to the provider.
	Defaults sandbox.Resources
	// Facts are what the provider can do here, as its Probe finds. Nil: Probe is
	// called whenever that matters.
	Facts func(context.Context) (driver.Facts, error)
	// Workspaces says that the caller attaches workspaces. Without it a request
	// for one is refused.
	Workspaces bool
	// Guard carries out every action: it calls act once, or refuses to and
	// returns why. Nil allows everything: the caller owns the machine.
	Guard func(ctx context.Context, a Action, act func(context.Context) error) error
	// LockNames keeps every other maker of sandboxes on this node, in this
	// process or another, from taking a name until release is called. Nil
	// guards against this process only.
	LockNames func(context.Context) (release func(), err error)
	// Owner marks sandboxes that must not outlive their maker. Nil: this
	// process.
	Owner Owner
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
	// NewID makes sandbox ids, never the same twice. Nil: random ones.
	NewID func() sandbox.ID
	// Teardown bounds the removal of a sandbox whose caller went away. Zero:
	// 30 seconds.
	Teardown time.Duration
}

// Control is the control plane of one provider on one node. Its methods may
// be called concurrently.
type Control struct {
	cfg   Config
	names sync.Mutex // the default of LockNames
}

// New returns a Control. It panics without a provider, which is a fault of the
// program and not of its input.
func New(cfg Config) *Control {
	if cfg.Provider == nil {
		panic("control: no provider")
	}
	c := &Control{cfg: cfg}
	if c.cfg.Now == nil {
		c.cfg.Now = time.Now
	}
	if c.cfg.Facts == nil {
		c.cfg.Facts = c.cfg.Provider.Probe
	}
	if c.cfg.NewID == nil {
		c.cfg.NewID = randomID
	}
	if c.cfg.Teardown <= 0 {
		c.cfg.Teardown = defaultTeardown
	}
	if c.cfg.Owner == nil {
		c.cfg.Owner = thisProcess
	}
	if c.cfg.LockNames == nil {
		c.cfg.LockNames = func(context.Context) (func(), error) {
			c.names.Lock()
			return c.names.Unlock, nil
		}
	}
	return c
}

// do is the choke point that every action passes. What must be true before
// anything happens (who may, who holds the lease, is it written down) belongs
// here and nowhere else.
func (c *Control) do(ctx context.Context, a Action, act func(context.Context) error) error {
	drive := func(ctx context.Context) error { return span.In(ctx, "driver", string(a.Op), a.Sandbox, act) }
	if c.cfg.Guard != nil {
		return c.wrap(a, c.cfg.Guard(ctx, a, drive))
	}
	return c.wrap(a, drive(ctx))
}

// Guarded returns a handle on the same sandbox whose every action passes a
// guard; see Config.Guard.
func (s *Sandbox) Guarded(guard func(ctx context.Context, a Action, act func(context.Context) error) error) *Sandbox {
	own := *s
	own.c = &Control{cfg: s.c.cfg}
	own.c.cfg.Guard = guard
	return &own
}

// Probe tells what the provider can do here.
func (c *Control) Probe(ctx context.Context) (driver.Facts, error) {
	var facts driver.Facts
	err := c.do(ctx, Action{Op: ops.ProviderProbe}, func(ctx context.Context) (err error) {
		facts, err = c.cfg.Provider.Probe(ctx)
		return err
	})
	return facts, err
}

// Describe completes what is known of a provider by what it says itself.
func (c *Control) Describe(ctx context.Context, p *sandbox.Provider) error {
	facts, err := c.Probe(ctx)
	driver.Describe(c.cfg.Provider, facts, p)
	return err
}

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// randomID has 65 bits of randomness: enough that ids never meet, short enough
// to be typed.
func randomID() sandbox.ID {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return sandbox.ID("sb-" + strings.ToLower(idEncoding.EncodeToString(b[:]))[:13])
}
