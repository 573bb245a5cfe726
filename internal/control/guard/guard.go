// Package guard authorises and records all operations of the control plane.
// Every operation passes [Guard.Do], or [Guard.Admit] if it writes its record
// in its own transaction. Nothing can disable the guard.
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

// Subject is the object of an operation.
type Subject struct {
	Sandbox sandbox.ID // empty if the operation has no sandbox
	Name    string     // name of the sandbox, if known
	Subject string     // what is accessed: a name, a path, a process; never a secret
	// Command is the command of process.exec. Its environment may contain secrets.
	Command *sandbox.Command
}

// Guard authorises and records operations. Its fields must not change after the
// first use. It is safe for concurrent use.
type Guard struct {
	Audit *audit.Recorder
	// Meter refuses commands that a tenant starts too fast. Nil: no limit.
	Meter func(ctx context.Context, tenant string) error
	// Note is called with errors that cannot be returned to a caller. Nil: they
	// are dropped.
	Note func(ctx context.Context, err error)
}

type principalKey struct{}

// WithPrincipal returns a context for requests of the principal who.
func WithPrincipal(ctx context.Context, who key.Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, who)
}

// WithOwner returns a context in which the daemon acts for a tenant.
func WithOwner(ctx context.Context, tenant string) context.Context {
	return WithPrincipal(ctx, key.Principal{Tenant: tenant, Verbs: []key.Verb{key.Admin}})
}

// ForTenant reports whether a request comes from a caller other than the owner
// of the machine.
func ForTenant(ctx context.Context) bool {
	who, ok := ctx.Value(principalKey{}).(key.Principal)
	return ok && who.UID == nil
}

// Principal returns the principal of a request. Without one it returns
// CodeUnauthorized.
func Principal(ctx context.Context) (key.Principal, error) {
	who, ok := ctx.Value(principalKey{}).(key.Principal)
	if !ok || who.Tenant == "" {
		return who, &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "missing API key"}
	}
	return who, nil
}

// Do authorises and records an operation. It calls fn once, or returns the
// reason for refusing.
func (g *Guard) Do(ctx context.Context, op ops.Op, s Subject, fn func(context.Context) error) error {
	return g.do(ctx, op, s, g.allow, fn)
}

// Operate is Do for operations that only the owner of the machine may use, for
// any tenant. They are recorded in the log of the owner's tenant.
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

// Change is Do for an operation whose subject is known only afterwards, such as
// the id of a new object: fn returns it. The checks in more may also refuse.
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

// Admit authorises an operation whose caller records the returned action
// together with its changes. Admit records a refusal. The checks in more may
// also refuse.
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

// allowance decides whether a principal may use an operation.
type allowance func(ctx context.Context, who key.Principal, op ops.Op, s Subject) error

func (g *Guard) allow(ctx context.Context, who key.Principal, op ops.Op, s Subject) error {
	if err := who.AllowIn(s.Sandbox, op); err != nil || op != ops.ProcessExec || g.Meter == nil {
		return err
	}
	return g.Meter(ctx, who.Tenant)
}

func (g *Guard) allowOwner(_ context.Context, who key.Principal, op ops.Op, _ Subject) error {
	if err := who.Allow(op); err != nil {
		return err
	}
	if who.Tenant != key.DefaultTenant { // the record is not for that tenant's log
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: string(op), Subject: "tenant", Message: "this is about the whole machine, not about one tenant",
			Hint: "leave out the tenant",
		}
	}
	return nil
}

// Action returns the audit record of an operation.
func Action(who key.Principal, op ops.Op, s Subject) audit.Action {
	return audit.Action{
		Tenant: who.Tenant, Actor: eventlog.Actor{Key: who.Key, UID: who.UID}, Op: op,
		Sandbox: s.Sandbox, Name: s.Name, Subject: s.Subject, Command: s.Command,
	}
}
