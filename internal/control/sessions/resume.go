package sessions

import (
	"context"
	"encoding/json"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Resume returns the session of an envelope: the existing session with that
// sandbox, or a new one that finds or rebuilds it.
func (s *Service) Resume(ctx context.Context, req durable.ResumeRequest) (out durable.Opened, err error) {
	const op = ops.SessionResume
	defer core.Name(op, &err)
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	row, err := fromEnvelope(who.Tenant, req)
	if err != nil {
		return out, err
	}
	var stored store.Session
	err = s.Do(ctx, op, guard.Subject{Subject: row.Name}, func(ctx context.Context) error {
		if err := s.settle(ctx, req, &row); err != nil {
			return err
		}
		return s.Store.Update(ctx, func(tx *store.Tx) error {
			// Two callers with one envelope must not get two sessions for its sandbox.
			if _, err := tx.Tenants().Lock(ctx, who.Tenant); err != nil {
				return err
			}
			stored, out.Created, err = adopt(ctx, tx, row)
			return err
		})
	})
	if err == nil && !out.Created {
		err = s.provision.sandboxesOf(who.Tenant, &stored).takeBack(ctx, *row.Prior)
	}
	if err != nil {
		return out, err
	}
	return s.opened(ctx, stored, out, req.Holder)
}

// fromEnvelope returns the record of a session that starts from an envelope.
// It looks nothing up, because the caller may not be allowed to resume.
func fromEnvelope(tenant string, req durable.ResumeRequest) (store.Session, error) {
	data, err := json.Marshal(req.Envelope)
	if err != nil {
		return store.Session{}, err
	}
	e, err := durable.ParseEnvelope(data)
	if err != nil {
		return store.Session{}, err
	}
	switch {
	case len(e.Spec.Mounts) > 0:
		return store.Session{}, &sandbox.Error{
			Code: sandbox.CodeDenied, Subject: "envelope", Message: "an envelope cannot show files of the machine to a sandbox", Hint: "create a session with those mounts",
		}
	case e.Sandbox != "":
		if err := sandbox.ValidateName(e.Sandbox); err != nil {
			return store.Session{}, err
		}
	}
	row, _, err := newSession(tenant, durable.NewSession{Name: req.Name, Spec: e.Spec})
	row.Prior = &e
	return row, err
}

// settle decides from what the session of an envelope starts, and on which
// provider. Envelopes are untrusted: they can only name things that the caller
// could request directly.
func (s *Service) settle(ctx context.Context, req durable.ResumeRequest, row *store.Session) error {
	e, b := row.Prior, s.provision.sandboxesOf(row.Tenant, nil)
	var err error
	if e.Sandbox != "" {
		err = b.reachable(ctx, *e)
	}
	if err := s.choose(ctx, row.Tenant, e, err); err != nil {
		return err
	}
	if e.Sandbox == "" && req.Provider != "" {
		e.Backend = req.Provider
		if e.Archive != nil && e.Archive.Kind == tarKind {
			e.Archive.Provider = req.Provider
		}
	}
	row.Spec.Provider, row.Provider = e.Backend, e.Backend
	return b.leads(ctx, *e)
}

// leads refuses an envelope that leads to nothing that the tenant has or had: an
// unknown provider or workspace, or a sandbox that this installation never made
// for it, with nothing saved. A sandbox of another tenant is such a one.
func (s tenantSandboxes) leads(ctx context.Context, e durable.Envelope) error {
	if _, err := s.providers.Binding(ctx, e.Backend); sandbox.CodeOf(err) == sandbox.CodeInvalid { // there is no such provider
		return err
	}
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		for _, w := range e.Spec.Workspaces {
			if _, err := tx.Workspaces().Get(ctx, s.tenant, w.Name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, other := s.own.elsewhere(e.Binding)
	if e.Sandbox == "" || other || e.Archive != nil || len(e.Spec.Workspaces) > 0 {
		return nil
	}
	if _, err := s.record(ctx, e.Sandbox); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeNotFound, Op: "session.resume", Subject: e.Sandbox, Message: "there is no sandbox with that id, and the envelope names nothing saved",
		Hint: "create a session instead: atoll session create",
	}
}

// adopt records a session that starts from an envelope, unless another session
// already has the sandbox.
func adopt(ctx context.Context, tx *store.Tx, row store.Session) (stored store.Session, created bool, err error) {
	if row.Prior.Sandbox == "" {
		stored, err = tx.Sessions().Create(ctx, row)
		return stored, true, err
	}
	all, err := tx.Sessions().List(ctx, row.Tenant)
	if err != nil {
		return stored, false, err
	}
	for _, other := range all {
		l, err := tx.Sessions().Lease(ctx, row.Tenant, other.Group)
		if err != nil {
			return stored, false, err
		}
		fresh := l.Ref == nil && l.Archive == nil && other.Prior != nil && other.Prior.Sandbox == row.Prior.Sandbox
		if fresh || string(l.Sandbox) == row.Prior.Sandbox {
			return other, false, nil
		}
	}
	stored, err = tx.Sessions().Create(ctx, row)
	return stored, true, err
}
