// Package core provides what all control services share: the store, the guard,
// the log, and background work.
package core

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// LocalNode is the node name of a daemon that does not share its store.
const LocalNode = "local"

// StaleAfter is the age of the last heartbeat after which a daemon counts as
// ended.
const StaleAfter = 30 * time.Second

// Config configures a Core. Its owner closes the fields after closing the Core.
type Config struct {
	Store *store.Store
	Audit *audit.Recorder
	// Node is the name of this daemon. The daemon owns the records with this name.
	Node string
	// Logger gets errors that cannot be returned to a caller. Nil: slog.Default.
	Logger *slog.Logger
	// Fault is called at named points, for tests. If it returns an error, the
	// operation stops there as in a crash. Nil does nothing.
	Fault func(point string) error
}

// Core is shared by the services of one daemon. Its fields must not change
// after the first use. It is safe for concurrent use.
type Core struct {
	*guard.Guard
	Store  *store.Store
	Node   string
	Logger *slog.Logger
	Fault  func(point string) error
	// Life is canceled when the Core is closed.
	Life context.Context

	stop       context.CancelFunc
	background sync.WaitGroup
}

// New returns a Core. The caller closes it.
func New(cfg Config) *Core {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Fault == nil {
		cfg.Fault = func(string) error { return nil }
	}
	c := &Core{Store: cfg.Store, Node: cfg.Node, Logger: cfg.Logger, Fault: cfg.Fault}
	c.Guard = &guard.Guard{Audit: cfg.Audit, Note: c.Report}
	c.Life, c.stop = context.WithCancel(context.Background())
	return c
}

// Close ends background work and waits for it. It does not end sandboxes.
func (c *Core) Close() error {
	c.stop()
	c.background.Wait()
	return nil
}

// Go calls f in the background. f must return soon after Life has ended.
func (c *Core) Go(f func()) { c.background.Go(f) }

// Report logs an error that cannot be returned to a caller. It ignores nil and
// errors caused by Close.
func (c *Core) Report(ctx context.Context, err error) {
	if cut := c.Life.Err() != nil && sandbox.CodeOf(err) == sandbox.CodeCanceled; err != nil && !cut {
		c.Logger.ErrorContext(ctx, "background work failed", "error", err)
	}
}

// Look authorises an operation that only reads from the store.
func (c *Core) Look(ctx context.Context, op ops.Op, subject string) (who key.Principal, err error) {
	if who, err = guard.Principal(ctx); err != nil {
		return who, err
	}
	return who, c.Do(ctx, op, guard.Subject{Subject: subject}, func(context.Context) error { return nil })
}

// Read authorises an operation that only reads, and reads in one transaction. Its
// errors name the operation.
func Read[T any](ctx context.Context, c *Core, op ops.Op, subject string, read func(tx *store.Tx, tenant string) (T, error)) (out T, err error) {
	who, err := c.Look(ctx, op, subject)
	if err != nil {
		return out, err
	}
	out, err = store.Read(ctx, c.Store, func(tx *store.Tx) (T, error) { return read(tx, who.Tenant) })
	return out, Named(op, err)
}

// Do is Do of the guard. Its errors name the operation.
func (c *Core) Do(ctx context.Context, op ops.Op, s guard.Subject, act func(context.Context) error) error {
	return Named(op, c.Guard.Do(ctx, op, s, act))
}

// Change is Change of the guard. Its errors name the operation.
func (c *Core) Change(ctx context.Context, op ops.Op, s guard.Subject, act func(context.Context) (subject string, err error), more ...func(key.Principal) error) error {
	return Named(op, c.Guard.Change(ctx, op, s, act, more...))
}

// AsOwner runs an operation that only the owner of the machine may use, for any
// tenant.
func (c *Core) AsOwner(ctx context.Context, op ops.Op, subject string, act func(context.Context) error) error {
	return Named(op, c.Operate(ctx, op, guard.Subject{Subject: subject}, act))
}

// Act runs an action of a sandbox handle, which names the operation in its errors;
// see engine.Config.Guard.
func (c *Core) Act(ctx context.Context, a engine.Action, act func(context.Context) error) error {
	return c.Guard.Do(ctx, a.Op, SubjectOf(a), act)
}

// SubjectOf returns the subject of an action.
func SubjectOf(a engine.Action) guard.Subject {
	return guard.Subject{Sandbox: a.Sandbox, Name: a.Name, Subject: a.Subject, Command: a.Command}
}

// ActionOf returns an action of who for the audit log.
func ActionOf(who key.Principal, a engine.Action) audit.Action {
	return guard.Action(who, a.Op, SubjectOf(a))
}

// Named adds the operation to an error that has none.
func Named(op ops.Op, err error) error {
	known, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		if err == nil {
			return nil
		}
		if engine.DiskFull(err) {
			return engine.Full(string(op), err)
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

// Name is Named for a deferred call: it adds the operation to the error that a
// method returns.
func Name(op ops.Op, err *error) { *err = Named(op, *err) }

// FirstError returns the first error that is not nil.
func FirstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
