package remove

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// GiveUp records that all sandboxes of a provider are gone, because the operator
// said so. The caller sees to it that they are ended if the provider comes back.
func (s *Remover) GiveUp(ctx context.Context, provider string) error {
	ctx = store.WithReserve(ctx)
	all, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) ([]store.Sandbox, error) { return tx.Operator().SandboxesOf(ctx, provider) })
	failed := []error{err}
	for i := range all {
		failed = append(failed, s.giveUp(ctx, &all[i]))
	}
	return errors.Join(failed...)
}

// giveUp waits for no operation on the sandbox: that may wait for the node.
func (s *Remover) giveUp(ctx context.Context, b *store.Sandbox) error {
	for range 3 { // it may change at the same time
		now, err := s.Records.Record(ctx, b.Tenant, b.ID)
		if err != nil || now.State == sandbox.Gone {
			return err
		}
		if err := s.Records.Observe(ctx, &now, records.Found{State: sandbox.Gone, Reason: records.ReasonLost}); err != nil {
			return err
		}
	}
	now, err := s.Records.Record(ctx, b.Tenant, b.ID)
	if err == nil && now.State != sandbox.Gone {
		err = &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: "the sandbox changes all the time", Hint: "try again"}
	}
	return err
}
