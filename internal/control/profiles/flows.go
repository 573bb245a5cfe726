package profiles

import (
	"context"
	"fmt"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Decision is a decision of the gateway about a flow or request of a sandbox,
// or about several of the same kind.
type Decision struct {
	Type    eventlog.Type // one of the egress types
	Subject string        // what was sent where, and the reason; without query and contents
	Rule    string        // name of the rule; empty for none
	Bytes   int64         // in both directions
}

// Decided records a decision of the gateway. It does not wait for the disk, so
// that it does not slow down traffic.
func (s *Service) Decided(ctx context.Context, id sandbox.ID, d Decision) error {
	fact, err := s.fact(ctx, id, audit.Action{Op: ops.EgressFlow, Subject: d.Subject, Policy: d.Rule, Bytes: d.Bytes})
	if err != nil {
		return err
	}
	return s.Audit.FactLater(fact, d.Type, nil)
}

// SecretUse is one use of a secret by the gateway, or several of the same kind.
type SecretUse struct {
	Secret  string
	Version int64
	Rule    string // that allowed it; empty for a placeholder
	Host    string // that it was sent to
}

// SecretUsed records that the gateway sent a secret for a sandbox: its name,
// the rule and the host, but not the value.
func (s *Service) SecretUsed(ctx context.Context, id sandbox.ID, u SecretUse) error {
	fact, err := s.fact(ctx, id, audit.Action{Op: ops.SecretUse, Subject: fmt.Sprintf("%s@%d → %s", u.Secret, u.Version, u.Host), Policy: u.Rule})
	if err != nil {
		return err
	}
	return s.Audit.Fact(ctx, fact, eventlog.SecretUsed, nil)
}

// fact fills in the sandbox of an action.
func (s *Service) fact(ctx context.Context, id sandbox.ID, a audit.Action) (audit.Action, error) {
	b, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, id) })
	a.Tenant, a.Sandbox, a.Name = b.Tenant, b.ID, b.Name
	return a, err
}
