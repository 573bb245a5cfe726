// Package guard is the one place where a request becomes an action. Every
// operation of the control plane passes [Guard.Do], or [Guard.Admit] if it writes
// its record as a part of a transaction of its own. Nothing switches it off.
package guard

import (
	"context"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// Subject is what an operation is about.
type Subject struct {
	Sandbox sandbox.ID // empty when it is about none
	Name    string     // of that sandbox, if it is known
	Subject string     // what is touched: a name, a path, a process; never a secret
	// Command is what process.exec is to run. Its environment may be secret.
	Command *sandbox.Command
}

// Guard authorises and records operations. Its fields do not change once it is
// used; its methods may be called concurrently.
type Guard struct {
	Audit *audit.Recorder
	// Meter refuses commands that a tenant starts too fast. Nil: none are.
	Meter func(ctx context.Context, tenant string) error
	// Note is told what no caller can be told. Nil: nobody is.
	Note func(ctx context.Context, err error)
}

type principalKey struct{}

// WithPrincipal returns a context for requests of who.
func WithPrincipal(ctx context.Context, who key.Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, who)
}

// ForTenant reports whether a context is that of a request of somebody other
// than the owner of the machine.
func ForTenant(ctx context.Context) bool {
	who, ok := ctx.Value(principalKey{}).(key.Principal)
	return ok && who.UID == nil
}

// Principal returns who makes a request. Without one it is CodeUnauthorized.
func Principal(ctx context.Context) (key.Principal, error) {
	who, ok := ctx.Value(principalKey{}).(key.Principal)
	if !ok || who.Tenant == "" {
		return who, &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "missing API key"}
	}
	return who, nil
}

// Do carries out an operation: it calls fn once, or refuses to and returns why.
func (g *Guard) Do(ctx context.Context, op ops.Op, s Subject, fn func(context.Context) error) error {
	return g.do(ctx, op, s, g.allow, fn)
}

// Operate is Do for what only the owner of the machine may do, whichever tenant
// it is about. It is recorded in the log of the owner's own tenant.
func (g *Guard) Operate(ctx context.Context, op ops.Op, s Subject, fn func(context.Context) error) error {
	return g.do(ctx, op, s, g.allowOwner, fn)
}

func (g *Guard) do(ctx context.Context, op ops.Op, s Subject, allow allowance, fn func(context.Context) error) (err error) {
	who, err := Principal(ctx)
	if err != nil {
		return err
	}
	ctx, end := span.Start(ctx, "control", string(op), s.Sandbox)
	defer func() { end(err) }()
	authorize := func() error { return allow(ctx, who, op, s) }
	if op.Class() == ops.Glance {
		if err := authorize(); err != nil {
			g.denied(ctx, Action(who, op, s), err)
			return err
		}
		return fn(ctx)
	}
	return g.Audit.Do(ctx, Action(who, op, s), authorize, func(ctx context.Context) (audit.Outcome, error) {
		return audit.Outcome{}, fn(ctx)
	})
}

// Change is Do for an operation whose subject is known only when it is done, such
// as the id of what was made: fn returns it. More checks may refuse it too.
func (g *Guard) Change(ctx context.Context, op ops.Op, s Subject, fn func(context.Context) (subject string, err error), more ...func(key.Principal) error) error {
	who, err := Principal(ctx)
	if err != nil {
		return err
	}
	authorize := func() error { return g.allowAll(ctx, who, op, s, more) }
	return g.Audit.Do(ctx, Action(who, op, s), authorize, func(ctx context.Context) (audit.Outcome, error) {
		subject, err := fn(ctx)
		return audit.Outcome{Subject: subject}, err
	})
}

func (g *Guard) allowAll(ctx context.Context, who key.Principal, op ops.Op, s Subject, more []func(key.Principal) error) error {
	err := g.allow(ctx, who, op, s)
	for _, check := range more {
		if err == nil {
			err = check(who)
		}
	}
	return err
}

// Admit authorises an operation that its caller records together with what it
// changes, by the action that is returned. A refusal is on record. More checks
// may refuse it too.
func (g *Guard) Admit(ctx context.Context, op ops.Op, s Subject, more ...func(key.Principal) error) (key.Principal, audit.Action, error) {
	who, err := Principal(ctx)
	if err != nil {
		return who, audit.Action{}, err
	}
	a := Action(who, op, s)
	if err = g.allowAll(ctx, who, op, s, more); err != nil {
		g.denied(ctx, a, err)
	}
	return who, a, err
}

func (g *Guard) denied(ctx context.Context, a audit.Action, why error) {
	if err := g.Audit.Denied(ctx, a, why); err != nil && g.Note != nil {
		g.Note(ctx, err)
	}
}

// allowance decides whether somebody may do something.
type allowance func(ctx context.Context, who key.Principal, op ops.Op, s Subject) error

func (g *Guard) allow(ctx context.Context, who key.Principal, op ops.Op, s Subject) error {
	if err := who.AllowIn(s.Sandbox, op); err != nil || op != ops.ProcessExec || g.Meter == nil {
		return err
	}
	return g.Meter(ctx, who.Tenant)
}

func (g *Guard) allowOwner(_ context.Context, who key.Principal, op ops.Op, _ Subject) error {
	if who.UID == nil {
		return &sandbox.Error{
			Code: sandbox.CodeDenied, Op: string(op), Message: "only the owner of the machine may do that",
			Hint: "ask on the daemon's socket, without a key",
		}
	}
	return who.Allow(op)
}

// Action is an operation as it is recorded.
func Action(who key.Principal, op ops.Op, s Subject) audit.Action {
	return audit.Action{
		Tenant: who.Tenant, Actor: eventlog.Actor{Key: who.Key, UID: who.UID}, Op: op,
		Sandbox: s.Sandbox, Name: s.Name, Subject: s.Subject, Command: s.Command,
	}
}
