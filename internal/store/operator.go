package store

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Operator contains the operations across tenants: the daemon's housekeeping,
// the reaper, and authentication, which finds the tenant of a caller. It must
// not serve requests of tenants.
type Operator struct{ tx *Tx }

// Operator returns the methods across tenants.
func (tx *Tx) Operator() *Operator { return &Operator{tx} }

// Tenants lists all tenants by ID.
func (o *Operator) Tenants(ctx context.Context) ([]Tenant, error) {
	rows, err := o.tx.query(ctx, "SELECT "+tenantColumns+" FROM tenants ORDER BY id")
	return collect(rows, err, scanTenant)
}

// Key returns a key by its public part, before the caller's tenant is known.
func (o *Operator) Key(ctx context.Context, id string) (Key, error) {
	k, err := scanKey(o.tx.queryRow(ctx, keyQuery+"k.id = $1", id))
	return k, missing(err, "key", id)
}

// Sandboxes lists the records of a node's sandboxes that are not gone, by ID:
// at most limit with an ID after the given one.
func (o *Operator) Sandboxes(ctx context.Context, node string, after sandbox.ID, limit int) ([]Sandbox, error) {
	rows, err := o.tx.query(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE node = $1 AND id > $2 AND state <> 'gone' ORDER BY id LIMIT $3", node, string(after), limit)
	return collect(rows, err, scanSandbox)
}

// Sandbox returns a sandbox of any tenant by its ID.
func (o *Operator) Sandbox(ctx context.Context, id sandbox.ID) (Sandbox, error) {
	b, err := scanSandbox(o.tx.queryRow(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE id = $1", string(id)))
	return b, missing(err, "sandbox", string(id))
}

// Expired lists sandboxes of a node past their deadline, the most overdue
// first.
func (o *Operator) Expired(ctx context.Context, node string, limit int) ([]Sandbox, error) {
	rows, err := o.tx.query(ctx, "SELECT "+sandboxColumns+` FROM sandboxes
		WHERE expires > 0 AND expires <= $1 AND state <> 'gone' AND node = $2 ORDER BY expires, id LIMIT $3`, nanos(o.tx.Now()), node, limit)
	return collect(rows, err, scanSandbox)
}

// NextExpiry returns the next deadline of a node's sandboxes; zero if there is
// none.
func (o *Operator) NextExpiry(ctx context.Context, node string) (time.Time, error) {
	var at int64
	err := o.tx.queryRow(ctx, "SELECT COALESCE(MIN(expires), 0) FROM sandboxes WHERE expires > $1 AND state <> 'gone' AND node = $2", nanos(o.tx.Now()), node).Scan(&at)
	return timeOf(at), err
}

// Idle lists running sandboxes of a node that were not used for longer than
// their idle policy allows. It includes those with a last use in the future:
// the clock was set back, so their real last use is unknown.
func (o *Operator) Idle(ctx context.Context, node string, limit int) ([]Sandbox, error) {
	rows, err := o.tx.query(ctx, "SELECT "+sandboxColumns+` FROM sandboxes
		WHERE idle_after > 0 AND state = 'running' AND (active + idle_after <= $1 OR active > $1) AND node = $2 ORDER BY active, id LIMIT $3`, nanos(o.tx.Now()), node, limit)
	return collect(rows, err, scanSandbox)
}

// Claim moves a sandbox from one node to another. The new node must be
// registered and alive. The old node must have sent no heartbeat for stale, or
// never have registered. Claim increases the epoch, so that the old node
// notices if it is still alive. CodeConflict means that the sandbox no longer
// belongs to the old node, or that the old node is alive.
func (o *Operator) Claim(ctx context.Context, id sandbox.ID, from, to string, stale time.Duration) error {
	now := o.tx.Now()
	n, err := o.tx.exec(ctx, `UPDATE sandboxes SET node = $1, epoch = epoch + 1, version = version + 1, updated = $2
		WHERE id = $3 AND node = $4 AND state <> 'gone'
		AND EXISTS (SELECT 1 FROM nodes WHERE id = $1 AND heartbeat > $5)
		AND NOT EXISTS (SELECT 1 FROM nodes WHERE id = $4 AND heartbeat > $5)`,
		to, nanos(now), string(id), from, nanos(now.Add(-stale)))
	if err == nil && n == 0 {
		return fail(sandbox.CodeConflict, string(id), "cannot be claimed: it belongs to another node, or that node is alive")
	}
	return err
}

// PurgeGone removes the records of sandboxes that were gone before a time, at
// most limit, and returns their number. Until then, requests for them return
// "gone" instead of "not found".
func (o *Operator) PurgeGone(ctx context.Context, before time.Time, limit int) (int64, error) {
	const old = "SELECT id FROM sandboxes WHERE state = 'gone' AND updated < $1 ORDER BY updated, id LIMIT $2"
	if _, err := o.tx.exec(ctx, "DELETE FROM idempotency WHERE sandbox IN ("+old+")", nanos(before), limit); err != nil {
		return 0, err
	}
	return o.tx.exec(ctx, "DELETE FROM sandboxes WHERE id IN ("+old+")", nanos(before), limit)
}

// Stats counts a node's sandboxes that are not gone, by state, and its intents
// without an outcome.
func (o *Operator) Stats(ctx context.Context, node string) (states map[sandbox.State]int64, unsettled int64, err error) {
	type count struct {
		state sandbox.State
		n     int64
	}
	rows, err := o.tx.query(ctx, "SELECT state, COUNT(*) FROM sandboxes WHERE node = $1 AND state <> 'gone' GROUP BY state", node)
	counts, err := collect(rows, err, func(row scanner) (c count, err error) {
		err = row.Scan(&c.state, &c.n)
		return c, err
	})
	if err != nil {
		return nil, 0, err
	}
	states = map[sandbox.State]int64{}
	for _, c := range counts {
		states[c.state] = c.n
	}
	err = o.tx.queryRow(ctx, "SELECT COUNT(*) FROM intents WHERE node = $1", node).Scan(&unsettled)
	return states, unsettled, err
}
