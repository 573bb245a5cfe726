package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Node is a daemon that holds sandboxes.
type Node struct {
	ID string `json:"id"` // the same after a restart
	// Instance names one run of the daemon. It distinguishes a restart from two
	// daemons with the same ID by mistake.
	Instance  string    `json:"instance"`
	Address   string    `json:"address,omitempty"`
	Release   string    `json:"release,omitempty"`
	Started   time.Time `json:"started"`
	Heartbeat time.Time `json:"heartbeat"`
}

func scanNode(row scanner) (n Node, err error) {
	var started, heartbeat int64
	err = row.Scan(&n.ID, &n.Instance, &n.Address, &n.Release, &started, &heartbeat)
	n.Started, n.Heartbeat = timeOf(started), timeOf(heartbeat)
	return n, err
}

const nodeQuery = "SELECT id, instance, address, release, started, heartbeat FROM nodes"

// Register announces a run of a daemon. If another run with the same ID has
// sent a heartbeat within stale, the error is CodeConflict, because both would
// act as the owner of the node's sandboxes.
func (o *Operator) Register(ctx context.Context, n Node, stale time.Duration) error {
	now := o.tx.Now()
	old, err := scanNode(o.tx.queryRow(ctx, nodeQuery+" WHERE id = $1"+o.tx.s.dialect.forUpdate(), n.ID))
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return err
	case old.Instance != n.Instance && now.Sub(old.Heartbeat) < stale:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: n.ID, Message: "another daemon runs as this node",
			Hint: "give each daemon a node name of its own, or wait " + stale.String() + " after one was killed",
		}
	}
	// If two find no row, the second waits here and then changes nothing.
	changed, err := o.tx.exec(ctx, `INSERT INTO nodes (id, instance, address, release, started, heartbeat) VALUES ($1, $2, $3, $4, $5, $5)
		ON CONFLICT (id) DO UPDATE SET instance = excluded.instance, address = excluded.address, release = excluded.release,
		started = excluded.started, heartbeat = excluded.heartbeat
		WHERE nodes.instance = $6 OR nodes.instance = $2`, n.ID, n.Instance, n.Address, n.Release, nanos(now), old.Instance)
	if err == nil && changed == 0 {
		return fail(sandbox.CodeConflict, n.ID, "another daemon runs as this node")
	}
	return err
}

// Heartbeat records that a node is alive. It returns CodeStale when another run
// has taken over the node, or the node was given up. The caller must then stop
// acting on its sandboxes.
func (o *Operator) Heartbeat(ctx context.Context, id, instance string) error {
	n, err := o.tx.exec(ctx, "UPDATE nodes SET heartbeat = $1 WHERE id = $2 AND instance = $3", nanos(o.tx.Now()), id, instance)
	if err == nil && n == 0 {
		return fail(sandbox.CodeStale, id, "another daemon has taken this node over")
	}
	return err
}

// Unregister ends a run of a daemon, so that its successor need not wait. The
// node keeps its sandboxes.
func (o *Operator) Unregister(ctx context.Context, id, instance string) error {
	_, err := o.tx.exec(ctx, "UPDATE nodes SET heartbeat = 0, instance = '' WHERE id = $1 AND instance = $2", id, instance)
	return err
}

// Nodes lists all nodes that were ever registered, by ID.
func (o *Operator) Nodes(ctx context.Context) ([]Node, error) {
	rows, err := o.tx.query(ctx, nodeQuery+" ORDER BY id")
	return collect(rows, err, scanNode)
}
