package plane

import (
	"context"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// opFlow is the operation of events about what sandboxes send.
const opFlow = ops.EgressFlow

// Decision is what the gateway decided about a flow or request of a sandbox,
// or about several of the same kind.
type Decision struct {
	Type    eventlog.Type // one of the egress types
	Subject string        // what was sent to whom, and why that is so; no query and no contents
	Rule    string        // that decided; empty for none
	Bytes   int64         // both ways
}

// Decided records a decision of the gateway. It does not wait for the disk:
// traffic is many, and must not be held up.
func (p *Plane) Decided(ctx context.Context, id sandbox.ID, d Decision) error {
	b, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, id) })
	if err != nil {
		return err
	}
	fact := audit.Action{Tenant: b.Tenant, Op: opFlow, Sandbox: b.ID, Name: b.Name, Subject: d.Subject, Policy: d.Rule, Bytes: d.Bytes}
	return p.Audit.FactLater(fact, d.Type, nil)
}
