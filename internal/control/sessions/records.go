package sessions

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// records reads and writes sessions and their environments.
type records struct {
	*core.Core
	environments Environments
	grace        time.Duration // between the last holder and the end of a sandbox
}

// onSession runs a guarded operation on a session that is not being removed.
func (s *records) onSession(ctx context.Context, op ops.Op, ref string, do func(context.Context, key.Principal, store.Session) error) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return s.Do(ctx, op, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		row, err := s.find(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		return do(ctx, who, row)
	})
}

// find reads a session of a tenant that is not being removed.
func (s *records) find(ctx context.Context, tenant, ref string) (store.Session, error) {
	return store.Read(ctx, s.Store, func(tx *store.Tx) (store.Session, error) { return present(ctx, tx, tenant, ref) })
}

// present reads a session that is not being removed.
func present(ctx context.Context, tx *store.Tx, tenant, ref string) (store.Session, error) {
	row, err := known(ctx, tx, tenant, ref)
	if err == nil && row.Removing {
		err = &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: row.Name, Message: "the session is being removed",
			Hint: "finish that with: atoll session rm " + row.Name,
		}
	}
	return row, err
}

// known reads a session.
func known(ctx context.Context, tx *store.Tx, tenant, ref string) (store.Session, error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return store.Session{}, err
	}
	return tx.Sessions().Get(ctx, tenant, ref)
}

// described returns a session with its lease.
func (s *records) described(ctx context.Context, tenant, ref string) (out durable.Session, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		row, err := tx.Sessions().Get(ctx, tenant, ref)
		if err != nil {
			return err
		}
		if out, err = describe(ctx, tx, row, s.grace); err == nil {
			out.Lease.History, err = tx.Sessions().Epochs(ctx, row.Tenant, row.Group, maxHistory)
		}
		return err
	})
	return out, err
}

// maxHistory is the maximum number of epochs shown for a session.
const maxHistory = 20

func describe(ctx context.Context, tx *store.Tx, row store.Session, grace time.Duration) (durable.Session, error) {
	l, err := tx.Sessions().Lease(ctx, row.Tenant, row.Group)
	out := row.Session
	out.Lease = &durable.LeaseInfo{
		State: string(l.State), Epoch: l.Epoch, Provider: l.Provider, Sandbox: l.Sandbox, Holders: []durable.Holder{}, Expires: l.Expires,
	}
	for _, h := range l.Holders {
		out.Lease.Holders = append(out.Lease.Holders, durable.Holder{Kind: string(h.Kind), ID: h.ID, Subject: h.Subject, Beat: h.Beat})
	}
	if l.State == lease.Draining && !l.Expires.IsZero() && !l.Rotating {
		out.Lease.Idle = l.Expires.Add(-grace)
	}
	return out, err
}

// change changes the record of a session.
func (s *records) change(ctx context.Context, row store.Session, change func(*store.Session) error) (store.Session, error) {
	return store.Write(ctx, s.Store, func(tx *store.Tx) (store.Session, error) {
		row, err := tx.Sessions().Get(ctx, row.Tenant, row.ID)
		if err != nil {
			return row, err
		}
		if row.Labels == nil {
			row.Labels = map[string]string{}
		}
		if err := change(&row); err != nil {
			return row, err
		}
		return row, tx.Sessions().Update(ctx, row)
	})
}

// environment returns the environment of a session. Values that are missing on
// this machine are an error, because the sandbox would not match its spec.
func (s *records) environment(row *store.Session) (map[string]string, error) {
	if len(row.Spec.Env) == 0 {
		return nil, nil
	}
	env, err := s.environments.Get(sandbox.ID(row.ID))
	if err != nil {
		return nil, err
	}
	for name := range row.Spec.Env {
		if _, ok := env[name]; !ok {
			return nil, &sandbox.Error{
				Code: sandbox.CodeUnavailable, Subject: row.Name, Message: "this machine does not have the value of the session's environment variable " + name,
				Hint: "use the session where it was created",
			}
		}
	}
	return env, nil
}

// lastOf returns the lease of a session, and whether no other session uses it.
func (s *records) lastOf(ctx context.Context, row store.Session) (l lease.Lease, last bool, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) (err error) {
		l, last, err = lastOf(ctx, tx, row)
		return err
	})
	return l, last, err
}

func lastOf(ctx context.Context, tx *store.Tx, row store.Session) (l lease.Lease, last bool, err error) {
	others, err := tx.Sessions().InGroup(ctx, row.Tenant, row.Group)
	if err != nil {
		return l, false, err
	}
	last = true
	for _, o := range others {
		last = last && (o.ID == row.ID || o.Removing)
	}
	l, err = tx.Sessions().Lease(ctx, row.Tenant, row.Group)
	return l, last, err
}
