package sandboxes

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Enter returns the record of a sandbox of any tenant, and the context for
// requests with a token of that sandbox, which can only access this sandbox. The
// caller verifies the token. The token has the rights of the key that it was
// given to, and ends with that key. If keyID is empty, the request is the
// daemon's own. For a sandbox that is being removed, Enter returns CodeGone.
func (s *pauser) Enter(ctx context.Context, id sandbox.ID, keyID string) (context.Context, sandbox.Sandbox, error) {
	_, ending := s.ending.Load(id) // before the record is read, which says so once this no longer does
	var who key.Principal
	b, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) {
		b, err := tx.Operator().Sandbox(ctx, id)
		if err == nil {
			who, err = s.enters(ctx, tx, b.Tenant, id, keyID)
		}
		return b, err
	})
	switch {
	case err != nil:
		return ctx, b.Info(), core.Named(ops.SandboxEnter, err)
	case ending:
		return ctx, b.Info(), &sandbox.Error{Code: sandbox.CodeGone, Op: "sandbox.enter", Subject: string(id), Message: "the sandbox is being removed"}
	}
	return s.Tenants.KeepAlive(ctx, who, b.Tenant, keyID), b.Info(), nil
}

// enters returns the principal of a request inside a sandbox.
func (s *pauser) enters(ctx context.Context, tx *store.Tx, tenant string, id sandbox.ID, keyID string) (key.Principal, error) {
	if keyID == "" {
		return key.Bearer(tenant, id), s.Tenants.Valid(ctx, tx, tenant, "")
	}
	who, err := s.Tenants.Find(ctx, tx, tenant, keyID)
	return who.Within(id), err
}

// Keys returns the public parts of the keys with which tokens of a sandbox of
// any tenant are valid.
func (s *pauser) Keys(ctx context.Context, id sandbox.ID) ([]string, error) {
	ids, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]string, error) {
		b, err := tx.Operator().Sandbox(ctx, id)
		if err != nil {
			return nil, err
		}
		return s.Tenants.Accepted(ctx, tx, b.Tenant)
	})
	return ids, core.Named(ops.SandboxEnter, err)
}

// Mounted returns the workspaces of a sandbox of any tenant, and their mount
// points. It is for requests with that sandbox's own token.
func (s *pauser) Mounted(ctx context.Context, id sandbox.ID) ([]sandbox.WorkspaceMount, error) {
	b, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, id) })
	return b.Spec.Workspaces, core.Named(ops.SandboxEnter, err)
}

// Live returns the running sandboxes of all tenants on this node. It is for
// finding the sandbox of a token; the result must not be shown to callers.
func (s *pauser) Live(ctx context.Context) ([]sandbox.ID, error) {
	all, err := s.Recorded(ctx)
	ids := make([]sandbox.ID, 0, len(all))
	for _, b := range all {
		if b.State == sandbox.Running {
			ids = append(ids, b.ID)
		}
	}
	return ids, err
}

// Expire sets the time at which a sandbox ends. With extend, a time before the
// current one changes nothing.
func (s *expirer) Expire(ctx context.Context, ref string, at time.Time, extend bool) (b store.Sandbox, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return b, err
	}
	act := func(ctx context.Context) error {
		found, err := s.find(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		a := actionOf(who, control.Action{Op: opUpdate, Subject: ref})
		if err := s.Policies.PermitUntil(ctx, a, &found, at); err != nil && (!extend || found.Expires.IsZero() || at.After(found.Expires)) {
			return err
		}
		want := store.Expect{States: []sandbox.State{sandbox.Running}, Observed: true}
		b, err = store.Write(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) {
			return tx.Sandboxes().Update(ctx, who.Tenant, found.ID, want, func(b *store.Sandbox) {
				if !extend || b.Expires.IsZero() || at.After(b.Expires) {
					b.Expires = at
				}
			})
		})
		return err
	}
	err = s.Act(ctx, control.Action{Op: opUpdate, Subject: ref}, act)
	s.due.soon()
	return b, core.Named(opUpdate, err)
}

// due wakes the goroutine that waits for the next sandbox to expire.
type due chan struct{}

func (d due) soon() {
	select {
	case d <- struct{}{}:
	default:
	}
}

// maxWait limits the wait for the next expiry, because the clock may be set.
const maxWait = 30 * time.Second

// WatchExpiry ends expired sandboxes until ctx ends.
func (s *expirer) WatchExpiry(ctx context.Context) {
	for ctx.Err() == nil {
		wait, err := s.expire(ctx)
		if err != nil && ctx.Err() == nil {
			s.Report(ctx, err)
			wait = time.Second
		}
		t := time.NewTimer(min(max(wait, 0), maxWait))
		select {
		case <-ctx.Done():
		case <-s.due:
		case <-t.C:
		}
		t.Stop()
	}
}

// retryExpiry is the delay before a failed attempt is repeated.
const retryExpiry = time.Second

const opExpire = ops.SandboxExpire

// atTimeout applies the timeout action of a sandbox that has expired.
func (s *expirer) atTimeout(ctx context.Context, b *store.Sandbox) error {
	op := lifecycle.Sleep
	switch b.Spec.Lifetime.TimeoutAction {
	case sandbox.IdleStop:
		op = lifecycle.Stop
	case "", sandbox.IdleDelete:
		owner := guard.WithPrincipal(ctx, key.Principal{Tenant: b.Tenant, Verbs: []key.Verb{key.Admin}})
		return s.destroy(owner, string(b.ID), opExpire, reasonLifetime)
	}
	a := audit.Action{Tenant: b.Tenant, Op: opExpire, Sandbox: b.ID, Name: b.Name, Subject: b.Name}
	t, err := s.lockID(ctx, b.Tenant, b.ID, a, op)
	if err != nil {
		return ignoreGone(err)
	}
	defer t.release()
	if t.verdict == lifecycle.Done || t.box.Expires.IsZero() || t.box.Expires.After(s.Store.Now()) {
		return nil // it was changed meanwhile
	}
	if op == lifecycle.Stop {
		_, err = s.pauser.stopLocked(ctx, t)
	} else {
		err = s.pauser.putToSleep(ctx, t, t.box.Spec.Lifetime.Wakes)
	}
	return err
}

// expireGrace is the time given to a provider that enforces lifetimes itself.
const expireGrace = 2 * time.Second

// expireBatch is the number of sandboxes ended before the clock is read again.
const expireBatch = 100

// expire ends expired sandboxes and returns the time until the next expiry.
func (s *expirer) expire(ctx context.Context) (time.Duration, error) {
	var over []store.Sandbox
	var next time.Time
	err := s.Store.View(ctx, func(tx *store.Tx) (err error) {
		if over, err = tx.Operator().Expired(ctx, s.Node, expireBatch); err == nil {
			next, err = tx.Operator().NextExpiry(ctx, s.Node)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	wait := maxWait
	now := s.Store.Now()
	for _, b := range over {
		if b.Spec.Lifetime.HardTimeout() > 0 && now.Before(b.Expires.Add(expireGrace)) {
			wait = expireGrace // the provider ends it, and reports the reason
			continue
		}
		if err := s.atTimeout(ctx, &b); err != nil {
			s.Report(ctx, err)
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
