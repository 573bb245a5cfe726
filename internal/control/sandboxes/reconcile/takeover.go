package reconcile

import (
	"context"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// takenOver is the reason of a sandbox taken over from another installation.
const takenOver = "taken over from another installation"

// TakeOver records a sandbox of another installation that uses the same
// provider account, for a tenant. spec has its ID and provider. A sandbox that
// this installation had before is taken back. CodeGone: the provider says that
// the sandbox has ended.
func (s *Reconciler) TakeOver(ctx context.Context, tenant, binding string, spec sandbox.Spec) (out store.Sandbox, err error) {
	refuse := func(code sandbox.Code, message string) (store.Sandbox, error) {
		return out, &sandbox.Error{Code: code, Op: string(ops.SandboxAdopt), Subject: string(spec.ID), Message: message}
	}
	be, err := s.Providers.Backend(ctx, spec.Provider)
	if err != nil {
		return out, err
	}
	if be.Binding != binding {
		return refuse(sandbox.CodeUnavailable, "it belongs to "+binding+", but the provider uses "+be.Binding)
	}
	release, err := s.Records.Locks.Take(ctx, spec.ID)
	if err != nil {
		return out, err
	}
	defer release()
	had, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, spec.ID) })
	switch {
	case err == nil && had.Tenant == tenant && had.State != sandbox.Gone && had.Provider == be.Name && had.Node == s.Core.Node && be.Has(had.Binding):
		return s.takeBack(ctx, be, had, &spec)
	case err == nil && had.Tenant == tenant && had.State == sandbox.Gone:
		return refuse(sandbox.CodeConflict, "this installation had the sandbox, and has removed its record")
	case err == nil:
		return refuse(sandbox.CodeDenied, "it belongs to another tenant")
	case sandbox.CodeOf(err) != sandbox.CodeNotFound:
		return out, err
	}
	spec.Name = string(spec.ID)
	if err := claim(ctx, be, &spec); err != nil {
		return out, err
	}
	sb, err := be.Engine.Attach(ctx, spec.ID, spec.Name)
	if err != nil {
		return out, err
	}
	b := store.Sandbox{
		Summary: store.Summary{
			Sandbox: sandbox.Sandbox{
				ID: spec.ID, Name: spec.Name, State: sandbox.Running, Reason: takenOver, Provider: be.Name, Isolation: be.Isolation(ctx), Node: s.Core.Node,
				Image: spec.Image, Labels: spec.Labels,
			},
			Binding: be.Binding,
		},
		Spec: spec,
	}
	out, err = store.Write(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		out, _, err := tx.Sandboxes().Create(ctx, tenant, b, store.Create{})
		return out, err
	})
	if err != nil {
		return out, err
	}
	s.Ends.Refind(tenant, sb)
	return out, s.Core.Audit.Fact(ctx, audit.Action{Tenant: tenant, Op: ops.SandboxAdopt, Sandbox: b.ID, Name: b.Name, Subject: b.Name}, eventlog.Found, nil)
}

// claim makes the provider accept a sandbox that another installation created.
func claim(ctx context.Context, be *providers.Backend, spec *sandbox.Spec) error {
	adopter, ok := driver.As[driver.Adopter](be.Driver)
	if !ok {
		return nil
	}
	return adopter.Adopt(ctx, spec)
}

// takeBack takes over a sandbox that another installation took over from this
// one, which still has a record.
func (s *Reconciler) takeBack(ctx context.Context, be *providers.Backend, b store.Sandbox, spec *sandbox.Spec) (store.Sandbox, error) {
	if err := claim(ctx, be, spec); err != nil {
		return b, err
	}
	sb, err := be.Engine.Attach(ctx, b.ID, b.Name)
	if err != nil {
		return b, err
	}
	if b.State != sandbox.Lost {
		return b, nil // it still has the sandbox, or did not notice
	}
	if err := s.Records.Observe(ctx, &b, records.Found{State: sandbox.Running, Reason: takenOver}); err != nil {
		return b, err
	}
	s.Ends.Refind(b.Tenant, sb)
	return s.Records.Record(ctx, b.Tenant, b.ID)
}
