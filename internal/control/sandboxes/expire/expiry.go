// Package expire ends or pauses sandboxes that are idle or whose lifetime is over.
package expire

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Expirer ends or pauses sandboxes that are idle or expired. The caller fills in
// the fields.
type Expirer struct {
	Core     *core.Core
	Records  *records.Records
	Pauser   Pauser
	Remover  Remover
	Policies Policies
}

// Pauser pauses and stops sandboxes. Package pause implements it.
type Pauser interface {
	PauseLocked(ctx context.Context, t *records.Operation, toDisk, wakes bool) (store.Sandbox, error)
	PutToSleep(ctx context.Context, t *records.Operation, wakes bool) error
	StopLocked(ctx context.Context, t *records.Operation) (store.Sandbox, error)
	Keeps(b *store.Sandbox, sb *engine.Sandbox) bool
	HasMemory(ctx context.Context, b *store.Sandbox) bool
}

// Remover removes sandboxes. Package remove implements it.
type Remover interface {
	DestroyAs(ctx context.Context, ref string, op ops.Op, reason string) error
	Remove(ctx context.Context, b *store.Sandbox, action audit.Action, reason string) error
}

// Policies limit lifetimes. Package policies implements it.
type Policies interface {
	PermitUntil(ctx context.Context, a audit.Action, b *store.Sandbox, at time.Time) error
}

const opUpdate = ops.SandboxUpdate

// Expire sets the time at which a sandbox ends. With extend, a time before the
// current one changes nothing.
func (s *Expirer) Expire(ctx context.Context, ref string, at time.Time, extend bool) (b store.Sandbox, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return b, err
	}
	act := func(ctx context.Context) error {
		found, err := s.Records.Find(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		a := core.ActionOf(who, engine.Action{Op: opUpdate, Subject: ref})
		if err := s.Policies.PermitUntil(ctx, a, &found, at); err != nil && (!extend || found.Expires.IsZero() || at.After(found.Expires)) {
			return err
		}
		want := store.Expect{States: []sandbox.State{sandbox.Running}, Observed: true}
		b, err = store.Write(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
			return tx.Sandboxes().Update(ctx, who.Tenant, found.ID, want, func(b *store.Sandbox) {
				if !extend || b.Expires.IsZero() || at.After(b.Expires) {
					b.Expires = at
				}
			})
		})
		return err
	}
	err = s.Core.Do(ctx, opUpdate, guard.Subject{Subject: ref}, act)
	s.Records.LifetimeChanged.Send()
	return b, err
}

// maxWait limits the wait for the next expiry, because the clock may be set.
const maxWait = 30 * time.Second

// WatchExpiry ends expired sandboxes until ctx ends.
func (s *Expirer) WatchExpiry(ctx context.Context) {
	for ctx.Err() == nil {
		wait, err := s.expire(ctx)
		if err != nil && ctx.Err() == nil {
			s.Core.Report(ctx, err)
			wait = time.Second
		}
		t := time.NewTimer(min(max(wait, 0), maxWait))
		select {
		case <-ctx.Done():
		case <-s.Records.LifetimeChanged:
		case <-t.C:
		}
		t.Stop()
	}
}

// retryExpiry is the delay before a failed attempt is repeated.
const retryExpiry = time.Second

const opExpire = ops.SandboxExpire

// atTimeout applies the timeout action of a sandbox that has expired.
func (s *Expirer) atTimeout(ctx context.Context, b *store.Sandbox) error {
	op := lifecycle.Sleep
	switch b.Spec.Lifetime.TimeoutAction {
	case sandbox.IdleStop:
		op = lifecycle.Stop
	case "", sandbox.IdleDelete:
		return s.Remover.DestroyAs(guard.WithOwner(ctx, b.Tenant), string(b.ID), opExpire, records.ReasonLifetime)
	}
	a := audit.Action{Tenant: b.Tenant, Op: opExpire, Sandbox: b.ID, Name: b.Name, Subject: b.Name}
	t, err := s.Records.LockID(ctx, b.Tenant, b.ID, a, op)
	if err != nil {
		return records.IgnoreGone(err)
	}
	defer t.Release()
	if t.Verdict == lifecycle.Done || t.Sandbox.Expires.IsZero() || t.Sandbox.Expires.After(s.Core.Store.Now()) {
		return nil // it was changed meanwhile
	}
	if op == lifecycle.Stop {
		_, err = s.Pauser.StopLocked(ctx, t)
	} else {
		err = s.Pauser.PutToSleep(ctx, t, t.Sandbox.Spec.Lifetime.Wakes)
	}
	return err
}

// expireGrace is the time given to a provider that enforces lifetimes itself.
const expireGrace = 2 * time.Second

// expireBatch is the number of sandboxes ended before the clock is read again.
const expireBatch = 100

// expire ends expired sandboxes and returns the time until the next expiry.
func (s *Expirer) expire(ctx context.Context) (time.Duration, error) {
	var over []store.Sandbox
	var next time.Time
	err := s.Core.Store.View(ctx, func(tx *store.Tx) (err error) {
		if over, err = tx.Operator().Expired(ctx, s.Core.Node, expireBatch); err == nil {
			next, err = tx.Operator().NextExpiry(ctx, s.Core.Node)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	wait := maxWait
	now := s.Core.Store.Now()
	for _, b := range over {
		if b.Spec.Lifetime.HardTimeout() > 0 && now.Before(b.Expires.Add(expireGrace)) {
			wait = expireGrace // the provider ends it, and reports the reason
			continue
		}
		if err := s.atTimeout(ctx, &b); err != nil {
			s.Core.Report(ctx, err)
			wait = retryExpiry // do not delay the others
		}
	}
	switch {
	case len(over) == expireBatch:
		return 0, nil
	case next.IsZero():
		return wait, nil
	}
	return min(wait, next.Sub(now)), nil
}
