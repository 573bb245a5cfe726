// Package plane is the control plane of a daemon: what package control does
// for the owner of a machine, done for many tenants, with a memory that
// outlives the process.
//
// Who is asking is part of the context ([WithPrincipal]); without it nothing is
// done. Every action is authorised and recorded before it happens, and only a
// sandbox that the store has under the caller's tenant can be reached. What
// really runs is found by asking the provider, and [Plane.Reconcile] brings the
// store's opinion and that truth together.
package plane

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
)

// DefaultTenant owns what was made without a daemon, and is whom the owner of
// the machine acts for.
const DefaultTenant = "default"

// Config is what a Plane works with. Its owner closes what is in it, after the
// Plane is closed.
type Config struct {
	// Control says what makes sandboxes with the default provider, whose name is
	// Provider.
	Control  control.Config
	Provider string
	// Binding is that of the default provider; see Backend.
	Binding string
	// Open opens the others. Nil: there are none.
	Open Open
	// Shared are the providers besides the default one that callers with an API
	// key may choose. The owner of the machine may choose any.
	Shared []string
	// Defaults fill the limits that a request leaves at zero, as far as the
	// provider enforces them.
	Defaults sandbox.Resources
	// Node is the name of this daemon: it owns the sandboxes that carry it.
	Node  string
	Store *store.Store
	Log   *eventlog.Log
	Audit *audit.Recorder
	// Workspaces keeps the durable directories of sandboxes. Nil: there are none.
	Workspaces *worktree.Store
	// Buckets are what can be mounted for workspaces that are buckets. Nil: none.
	Buckets Buckets
	// Scratch is a directory for files that live for a moment.
	Scratch string
	// Passes seal the tokens for ports. Nil: tokens end with the Plane.
	Passes *key.Passes
	// Environments keep what sandboxes that do not run were made with.
	Environments Environments
	// Archive keeps named snapshots in the blob store, encrypted unless
	// PlainSnapshots is set. SnapshotCache is how many bytes their copies on
	// this machine may take. Nil: they stay on this machine.
	Archive        *archive.Archive
	PlainSnapshots bool
	SnapshotCache  int64
	// Sealer keeps the values of secrets. Nil: none are kept.
	Sealer *secret.Sealer
	// Sources reads secrets that are kept outside. Nil: there are none.
	Sources Sources
	// Gateway enforces what sandboxes may reach. Nil: nobody is told of
	// changes.
	Gateway Gateway
	// Operator is what the owner of the machine decides for all profiles.
	Operator policy.Operator
	// Policies say what sandboxes may be.
	Policies Policies
	// Builder builds templates. Nil: none are built.
	Builder Builder
	// Logger gets what no caller can be told. Nil: slog.Default.
	Logger *slog.Logger
	// Fault is called at named points and leaves everything as a crash there
	// would when it returns an error. Nil does nothing.
	Fault func(point string) error
}

// Sources reads the values of secrets that are kept outside the store. Package
// source has one.
type Sources interface {
	Read(ctx context.Context, s secret.Source) (secret.Value, error)
}

// Plane is the control plane of one daemon. Its methods may be called
// concurrently.
type Plane struct {
	cfg      Config
	gate     *guard.Guard
	backends backends
	ring     *key.Ring
	meter    *quota.Meter
	locks    locks
	rules    rulebook
	telling  locks // who tells the gateway about a sandbox
	// workspaces are locks too; a workspace's id stands where a sandbox's would.
	workspaces locks
	watched    sync.Map // sandbox.ID → *watcher: those that a goroutine waits for
	making     flights[sandbox.ID]
	writing    flights[string] // snapshots without a sandbox that answers for them
	archive    archiving
	uses       uses
	redactors  redactors
	due        due
	conns      connCount
	holds      holds
	soon       soon
	// unsettled says that something is known to be half-made.
	unsettled atomic.Bool
	hurry     chan struct{} // tells Watch so

	background sync.WaitGroup
	stop       context.CancelFunc
	life       context.Context // ends when the Plane is closed
}

// New returns a Plane. The caller calls Reconcile before the first request,
// and Close.
func New(cfg Config) *Plane {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Fault == nil {
		cfg.Fault = func(string) error { return nil }
	}
	if cfg.Passes == nil {
		cfg.Passes = key.NewPasses(key.NewPassKey())
	}
	p := &Plane{cfg: cfg, ring: key.NewRing(cfg.Store), meter: quota.NewMeter(cfg.Store.Now), hurry: make(chan struct{}, 1), due: make(due, 1), archive: newArchiving()}
	p.gate = &guard.Guard{Audit: cfg.Audit, Meter: p.meterExec, Note: p.note}
	p.life, p.stop = context.WithCancel(context.Background())
	if cfg.Defaults == (sandbox.Resources{}) {
		p.cfg.Defaults = cfg.Control.Defaults
	}
	p.addBackend(Backend{Name: cfg.Provider, Binding: cfg.Binding, Control: cfg.Control})
	return p
}

// Close ends what the Plane does in the background. It ends no sandbox.
func (p *Plane) Close() error {
	p.stop()
	p.background.Wait()
	return nil
}

// WithPrincipal returns a context for requests of who.
func WithPrincipal(ctx context.Context, who key.Principal) context.Context {
	return guard.WithPrincipal(ctx, who)
}

// ForTenant reports whether a context is that of a request of somebody other
// than the owner of the machine.
func ForTenant(ctx context.Context) bool { return guard.ForTenant(ctx) }

// principal returns who makes a request.
func principal(ctx context.Context) (key.Principal, error) { return guard.Principal(ctx) }

// guard carries out an action of a handle.
func (p *Plane) guard(ctx context.Context, a control.Action, act func(context.Context) error) error {
	return p.gate.Do(ctx, a.Op, subjectOf(a), act)
}

func subjectOf(a control.Action) guard.Subject {
	return guard.Subject{Sandbox: a.Sandbox, Name: a.Name, Subject: a.Subject, Command: a.Command}
}

func (p *Plane) meterExec(ctx context.Context, tenant string) error {
	l, err := p.limits(ctx, tenant)
	if err != nil || l.ExecRate == 0 {
		return err
	}
	return p.meter.Exec(tenant, l)
}

func auditAction(who key.Principal, a control.Action) audit.Action {
	return guard.Action(who, a.Op, subjectOf(a))
}

// note reports what no caller can be told.
func (p *Plane) note(ctx context.Context, err error) {
	if err != nil {
		p.cfg.Logger.ErrorContext(ctx, "control plane", "error", err)
	}
}

// named returns err with the operation it happened in, if it does not say.
func named(op ops.Op, err error) error {
	known, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		if err == nil {
			return nil
		}
		if control.DiskFull(err) {
			return control.Full(string(op), err)
		}
		return &sandbox.Error{Code: sandbox.CodeOf(err), Op: string(op), Message: "the request failed", Cause: err}
	}
	if known.Op != "" {
		return err
	}
	own := *known
	own.Op, own.Cause = string(op), err
	return &own
}

// locks serialise what must not happen twice at once to one sandbox.
type locks struct {
	mu   sync.Mutex
	held map[sandbox.ID]chan struct{}
}

// take waits for the lock of a sandbox; the caller calls release.
func (l *locks) take(ctx context.Context, id sandbox.ID) (release func(), err error) {
	for {
		l.mu.Lock()
		other := l.held[id]
		if other == nil {
			mine := make(chan struct{})
			if l.held == nil {
				l.held = map[sandbox.ID]chan struct{}{}
			}
			l.held[id] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, id)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// flights are the sandboxes or snapshots that are being made.
type flights[ID ~string] struct {
	mu   sync.Mutex
	made map[ID]chan struct{}
}

func (f *flights[ID]) begin(id ID) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made == nil {
		f.made = map[ID]chan struct{}{}
	}
	landed := make(chan struct{})
	f.made[id] = landed
	return func() {
		f.mu.Lock()
		delete(f.made, id)
		f.mu.Unlock()
		close(landed)
	}
}

// wait waits until a sandbox is no longer being made by this process.
func (f *flights[ID]) wait(ctx context.Context, id ID) error {
	f.mu.Lock()
	landed := f.made[id]
	f.mu.Unlock()
	if landed == nil {
		return nil
	}
	select {
	case <-landed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *flights[ID]) has(id ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[id] != nil
}

// How often the store is compared with what really runs: when all is known,
// and when something was found half-made.
const (
	reconcilePeriod = 30 * time.Second
	unsettledPeriod = time.Second
)

// Watch compares the store with what really runs from time to time, until ctx
// ends.
func (p *Plane) Watch(ctx context.Context) {
	for {
		period := reconcilePeriod
		if p.unsettled.Load() {
			period = unsettledPeriod
		}
		select {
		case <-ctx.Done():
			return
		case <-p.hurry:
		case <-time.After(period):
			if err := p.Reconcile(ctx); err != nil && ctx.Err() == nil {
				p.note(ctx, err)
			}
		}
	}
}

// doubt has the store compared with what really runs soon, because something
// could not be written down.
func (p *Plane) doubt() {
	p.unsettled.Store(true)
	select {
	case p.hurry <- struct{}{}:
	default:
	}
}
