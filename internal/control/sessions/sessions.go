package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// Service makes, describes, changes and removes sessions.
type Service struct {
	*records
	holders   *Holders
	provision *provision
	archives  *archives
	providers Providers
	machines  Machines
}

// Create makes a session. It acquires the sandbox if the request has a holder.
func (s *Service) Create(ctx context.Context, n durable.NewSession) (out durable.Opened, err error) {
	const op = ops.SessionCreate
	defer core.Name(op, &err)
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	row, env, err := newSession(who.Tenant, n)
	if err != nil {
		return out, err
	}
	var stored store.Session
	err = s.Do(ctx, op, guard.Subject{Subject: row.Name}, func(ctx context.Context) error {
		stored, out.Created, err = s.add(ctx, row, env, n.IfExists == durable.IfExistsAttach)
		return err
	})
	if err != nil {
		return out, err
	}
	return s.opened(ctx, stored, out, n.Holder)
}

// newSession returns the record of a session, and its environment.
func newSession(tenant string, n durable.NewSession) (row store.Session, env map[string]string, err error) {
	id := newID("se-")
	spec := n.Spec
	spec.ID, spec.Name = "", ""
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, n.Labels)
	spec.Labels = nil
	row = store.Session{Tenant: tenant, Session: durable.Session{
		ID: id, Name: cmp.Or(n.Name, id), Group: cmp.Or(n.Group, id), Provider: spec.Provider, Spec: spec, Labels: labels, PauseOnExit: n.PauseOnExit, Record: n.Record,
	}}
	return row, spec.Env, check(&row)
}

// check refuses a session for which a sandbox can never be made.
func check(row *store.Session) error {
	for _, name := range []string{row.Name, row.Group} {
		if err := sandbox.ValidateName(name); err != nil {
			return err
		}
	}
	if err := row.Spec.Validate(); err != nil {
		return err
	}
	if len(row.Spec.Ports) > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "ports", Message: "the sandboxes of a session have no published ports, because one may follow another at any time",
			Hint: "forward a port of the session with: atoll port forward",
		}
	}
	if p := row.Spec.Network.Inline; p != nil && p.Proxy != nil && p.Proxy.Password != "" {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "proxy.password", Message: "a session keeps no password of a proxy",
			Hint: "store a profile with the proxy, and name it in the session",
		}
	}
	switch row.Record {
	case "", viewing.RecordManual, viewing.RecordOnTurn:
	default:
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "record", Message: fmt.Sprintf("%.80q is not manual or on-turn", row.Record)}
	}
	for k := range row.Labels {
		if strings.HasPrefix(k, engine.ReservedPrefix) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "labels", Message: fmt.Sprintf("%.80q begins with %q, which Atoll keeps for itself", k, engine.ReservedPrefix)}
		}
	}
	return sandbox.ValidateLabels(row.Labels)
}

// add records a session. With attach, it returns an existing session with that name.
func (s *Service) add(ctx context.Context, row store.Session, env map[string]string, attach bool) (stored store.Session, created bool, err error) {
	if attach {
		stored, err = s.find(ctx, row.Tenant, row.Name)
		if sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return stored, false, err
		}
	}
	for range maxJoins {
		if stored, err = s.addOnce(ctx, row, env); !errors.Is(err, errGroupChanged) {
			break
		}
	}
	if err == nil {
		return stored, true, nil
	}
	if attach && sandbox.CodeOf(err) == sandbox.CodeAlreadyExists { // another caller was faster
		stored, err = s.find(ctx, row.Tenant, row.Name)
	}
	return stored, false, err
}

// maxJoins limits how often a session tries to join a group that changes.
const maxJoins = 5

func (s *Service) addOnce(ctx context.Context, row store.Session, env map[string]string) (stored store.Session, err error) {
	env, with, err := s.join(ctx, &row, env)
	if err != nil {
		return stored, err
	}
	if len(env) > 0 {
		if err := s.environments.Put(sandbox.ID(row.ID), env); err != nil {
			return stored, err
		}
	}
	stored, err = store.Write(ctx, s.Store, func(tx *store.Tx) (store.Session, error) {
		if err := unchanged(ctx, tx, row, with); err != nil {
			return row, err
		}
		return tx.Sessions().Create(ctx, row)
	})
	if err != nil {
		s.Report(ctx, s.environments.Remove(sandbox.ID(row.ID)))
	}
	return stored, err
}

// opened acquires the sandbox of a session, if that was requested, and
// describes both.
func (s *Service) opened(ctx context.Context, row store.Session, out durable.Opened, holder *durable.HolderRef) (durable.Opened, error) {
	if holder != nil {
		got, err := s.holders.Acquire(ctx, row.ID, *holder)
		if err != nil && out.Created { // the request failed as a whole
			s.Report(ctx, s.remove(context.WithoutCancel(ctx), row))
		}
		if err != nil {
			return out, err
		}
		out.Receipt = &got.Receipt
	}
	var err error
	out.Session, err = s.described(ctx, row.Tenant, row.ID)
	return out, err
}

// Get returns a session by its name or id.
func (s *Service) Get(ctx context.Context, ref string) (_ durable.Session, err error) {
	const op = ops.SessionGet
	defer core.Name(op, &err)
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return durable.Session{}, err
	}
	if err := sandbox.ValidateName(ref); err != nil {
		return durable.Session{}, err
	}
	out, err := s.described(ctx, who.Tenant, ref)
	return out, err
}

// List returns the sessions of the tenant that have all of the labels, by name.
func (s *Service) List(ctx context.Context, labels map[string]string) ([]durable.Session, error) {
	return core.Read(ctx, s.Core, ops.SessionList, "", func(tx *store.Tx, tenant string) (out []durable.Session, err error) {
		rows, err := tx.Sessions().List(ctx, tenant)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			if !matches(row.Labels, labels) {
				continue
			}
			one, err := describe(ctx, tx, row, s.grace)
			if err != nil {
				return nil, err
			}
			out = append(out, one)
		}
		return out, nil
	})
}

func matches(labels, wanted map[string]string) bool {
	for k, v := range wanted {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Update changes the labels, the idle policy and the recordings of a session.
func (s *Service) Update(ctx context.Context, ref string, c durable.SessionChange) (out durable.Session, err error) {
	err = s.onSession(ctx, ops.SessionUpdate, ref, func(ctx context.Context, _ key.Principal, row store.Session) error {
		_, err := s.change(ctx, row, func(row *store.Session) error {
			for k, v := range c.Labels {
				if v == nil {
					delete(row.Labels, k)
				} else {
					row.Labels[k] = *v
				}
			}
			if c.PauseOnExit != nil {
				row.PauseOnExit = *c.PauseOnExit
			}
			if c.Record != nil {
				row.Record = *c.Record
			}
			return check(row)
		})
		if err == nil {
			out, err = s.described(ctx, row.Tenant, row.ID)
		}
		return err
	})
	return out, err
}

// Remove removes a session. With the last session of a group, its sandbox and
// archives are removed; workspaces stay. A failed removal can be repeated.
func (s *Service) Remove(ctx context.Context, ref string) error {
	const op = ops.SessionRemove
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return s.Do(ctx, op, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		row, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Session, error) { return known(ctx, tx, who.Tenant, ref) })
		if err != nil {
			return err
		}
		row, err = s.change(ctx, row, func(row *store.Session) error {
			row.Removing = true
			return nil
		})
		if err != nil {
			return err
		}
		err = s.remove(ctx, row)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound { // a sweep has finished it
			return nil
		}
		return err
	})
}

// maxRemovals limits how many sandboxes are ended for one removal. Callers that
// are making one are refused, and remove it themselves.
const maxRemovals = 5

func (s *Service) remove(ctx context.Context, row store.Session) error {
	for range maxRemovals {
		l, last, err := s.lastOf(ctx, row)
		if err != nil {
			return err
		}
		if last {
			if err := s.clear(ctx, row.Tenant, l); err != nil {
				return err
			}
		}
		if err := s.Fault("session.cleared"); err != nil {
			return err
		}
		done, err := s.forget(ctx, row, l, last, s.archives.named(ctx, row.Tenant, l))
		if done && last {
			s.Report(ctx, s.archives.tidy(context.WithoutCancel(ctx), row.Tenant, row.Group)) // a sweep retries
		}
		if err != nil || done {
			return err
		}
	}
	return &sandbox.Error{Code: sandbox.CodeConflict, Subject: row.Name, Message: "others use the session", Hint: "try again"}
}

// clear ends the sandbox of a lease.
func (s *Service) clear(ctx context.Context, tenant string, l lease.Lease) error {
	b := s.provision.sandboxesOf(tenant, nil)
	if l.Sandbox != "" {
		if err := b.Delete(ctx, session.Sandbox{ID: l.Sandbox, Provider: l.Provider, Binding: l.Binding}); err != nil {
			return err
		}
	}
	return b.orphans(ctx, l, true)
}

// forget removes the records of a session, unless its lease has changed since
// it was read. With the last session of a group its archives go, too; see
// retire.
func (s *Service) forget(ctx context.Context, row store.Session, seen lease.Lease, last bool, named *durable.Archive) (done bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = s.Store.Update(ctx, func(tx *store.Tx) error {
		done = false
		l, still, err := lastOf(ctx, tx, row)
		if err != nil || still != last {
			return err
		}
		if last {
			if l.Sandbox != seen.Sandbox || l.Attempt != seen.Attempt {
				return nil
			}
			if err := retire(ctx, tx, row.Tenant, row.Group, named); err != nil {
				return err
			}
			if _, _, err := tx.Sessions().ApplyLease(ctx, row.Tenant, row.Group, lease.Meter{Epoch: l.Epoch}, lease.Config{}, row.Labels); err != nil {
				return err
			}
			if err := tx.Sessions().ForgetLease(ctx, row.Tenant, row.Group, row.Group == row.ID); err != nil {
				return err
			}
		}
		done = true
		return tx.Sessions().Remove(ctx, row.Tenant, row.ID)
	})
	if done && err == nil {
		s.Report(ctx, s.environments.Remove(sandbox.ID(row.ID)))
	}
	return done, err
}
