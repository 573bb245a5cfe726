// Package core holds what all services of the control plane share: the store, the
// guard, the log of what no caller can be told, and the work that goes on in the
// background.
package core

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// DefaultTenant owns what was made without a daemon. The owner of the machine acts
// for it.
const DefaultTenant = "default"

// LocalNode is the name of a daemon that has its store for itself.
const LocalNode = "local"

// Config is what a Core works with. Its owner closes what is in it, after the Core
// is closed.
type Config struct {
	Store *store.Store
	Audit *audit.Recorder
	// Node is the name of this daemon: it owns the records that carry it.
	Node string
	// Logger gets what no caller can be told. Nil: slog.Default.
	Logger *slog.Logger
	// Fault is called at named points. When it returns an error, everything is
	// left as a crash there would leave it. Nil does nothing.
	Fault func(point string) error
}

// Core is shared by the services of one daemon. Its fields do not change once it
// is used; its methods may be called concurrently.
type Core struct {
	*guard.Guard
	Store  *store.Store
	Node   string
	Logger *slog.Logger
	Fault  func(point string) error
	// Life ends when the Core is closed.
	Life context.Context

	stop       context.CancelFunc
	background sync.WaitGroup
}

// New returns a Core. The caller calls Close.
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

// Close ends what happens in the background, and waits for it. It ends no sandbox.
func (c *Core) Close() error {
	c.stop()
	c.background.Wait()
	return nil
}

// Go calls f in the background. f returns soon after Life has ended.
func (c *Core) Go(f func()) { c.background.Go(f) }

// Report logs an error that no caller can be told. Nil is none, and so is what Close
// has cut off.
func (c *Core) Report(ctx context.Context, err error) {
	if cut := c.Life.Err() != nil && sandbox.CodeOf(err) == sandbox.CodeCanceled; err != nil && !cut {
		c.Logger.ErrorContext(ctx, "background work failed", "error", err)
	}
}

// Look authorises an operation that only reads the store.
func (c *Core) Look(ctx context.Context, op ops.Op, subject string) (who key.Principal, err error) {
	if who, err = guard.Principal(ctx); err != nil {
		return who, err
	}
	err = c.Do(ctx, op, guard.Subject{Subject: subject}, func(context.Context) error { return nil })
	return who, Named(op, err)
}

// AsOwner does what only the owner of the machine may do, whichever tenant it is
// about.
func (c *Core) AsOwner(ctx context.Context, op ops.Op, subject string, act func(context.Context) error) error {
	return Named(op, c.Operate(ctx, op, guard.Subject{Subject: subject}, act))
}

// Act carries out an action of a handle on a sandbox; see control.Config.Guard.
func (c *Core) Act(ctx context.Context, a control.Action, act func(context.Context) error) error {
	return c.Do(ctx, a.Op, SubjectOf(a), act)
}

// SubjectOf returns what an action is about.
func SubjectOf(a control.Action) guard.Subject {
	return guard.Subject{Sandbox: a.Sandbox, Name: a.Name, Subject: a.Subject, Command: a.Command}
}

// Named returns err with the operation it happened in, if it does not say.
func Named(op ops.Op, err error) error {
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

// FirstError returns the first error that is not nil.
func FirstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
