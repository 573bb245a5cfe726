// Package remove ends sandboxes for good.
package remove

import (
	"context"
	"sync"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/workspaces"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Remover removes sandboxes. The caller fills in the fields.
type Remover struct {
	Core       *core.Core
	Records    *records.Records
	Workspaces *workspaces.Service

	removing sync.Map // sandbox.ID → nil
}

// Removing reports whether a sandbox is being removed now.
func (s *Remover) Removing(id sandbox.ID) bool {
	_, ok := s.removing.Load(id)
	return ok
}

const opDestroy = ops.SandboxDestroy

// Destroy removes a sandbox with its files. It succeeds if the sandbox is
// already gone.
func (s *Remover) Destroy(ctx context.Context, ref string) error {
	return core.Named(opDestroy, s.DestroyAs(ctx, ref, opDestroy, records.ReasonRemoved))
}

// DestroyAs is Destroy as another operation, for another reason.
func (s *Remover) DestroyAs(ctx context.Context, ref string, op ops.Op, reason string) (err error) {
	ctx, end := span.Start(ctx, "control", string(op), "")
	defer func() { end(err) }()
	ctx = store.WithReserve(ctx)
	who, action, err := s.Core.Admit(ctx, op, guard.Subject{Subject: ref})
	if err != nil {
		return err
	}
	b, err := s.findToRemove(ctx, who.Tenant, ref)
	if err != nil || b.State == sandbox.Gone {
		return err
	}
	if err := core.FirstError(s.Records.Here(ctx, &b), s.Records.Inflight.Wait(ctx, b.ID)); err != nil {
		return err
	}
	release, err := s.Records.Locks.Take(ctx, b.ID)
	if err != nil {
		return err
	}
	defer release()
	if b, err = s.Records.Record(ctx, who.Tenant, b.ID); err != nil || b.State == sandbox.Gone {
		return err // another caller was faster
	}
	action.Sandbox, action.Name, action.Subject = b.ID, b.Name, b.Name
	return s.Remove(ctx, &b, action, reason)
}

// findToRemove is Records.Find. If no sandbox has the name now, it returns the last one
// that had it.
func (s *Remover) findToRemove(ctx context.Context, tenant, ref string) (b store.Sandbox, err error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return b, err
	}
	return store.Read(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		b, err := tx.Sandboxes().Lookup(ctx, tenant, ref)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return tx.Sandboxes().Removed(ctx, tenant, ref)
		}
		return b, err
	})
}

// Remove destroys a recorded sandbox. The caller holds its lock.
func (s *Remover) Remove(ctx context.Context, b *store.Sandbox, action audit.Action, reason string) error {
	intent, err := s.Core.Audit.Begin(ctx, action)
	if err != nil {
		return err
	}
	// Clients whose streams break ask immediately whether the sandbox is still
	// running.
	s.removing.Store(b.ID, nil)
	defer s.removing.Delete(b.ID)
	if err := s.Core.Fault("destroy.recorded"); err != nil {
		return err
	}
	if err = s.Workspaces.Fetch(ctx, b.ID); err == nil {
		err = s.Records.End(ctx, b)
	}
	if fault := s.Core.Fault("destroy.done"); fault != nil {
		return fault
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), records.FinalizeTimeout)
	defer cancel()
	if err != nil {
		s.Core.Report(ctx, intent.End(audit.Outcome{Err: err}))
		return err
	}
	kept := b.Rest.Kept
	_, err = s.Records.Finalize(late, b.Tenant, b.ID, intent, audit.Outcome{}, func(b *store.Sandbox) {
		b.State, b.Reason, b.Rest = sandbox.Gone, reason, store.Rest{}
		if reason == records.ReasonLifetime && b.Exit == nil { // else who asks later learns only that it was removed
			exit := records.ExitOf(b)
			b.Exit = &exit
		}
	}, func(tx *store.Tx) error {
		if kept == "" {
			return nil
		}
		return tx.Snapshots().Delete(late, b.Tenant, kept)
	})
	if err == nil {
		s.Records.Discard(late, b)
	}
	s.Core.Report(ctx, s.Workspaces.DetachNow(ctx, b.ID, b.Name))
	return err
}
