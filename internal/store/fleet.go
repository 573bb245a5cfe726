package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// FleetNode is the record of a node daemon on which this daemon makes sandboxes.
// [Node] is a daemon that shares the database.
type FleetNode struct {
	Name string
	URL  string
	// Binding identifies the tenant there. Empty: the node has never answered.
	Binding string
	State   FleetState
	// Lost means that a removed node was given up while it did not answer.
	Lost    bool
	Added   time.Time
	Removed time.Time
	// Cleared is when the old sandboxes of a lost node were ended.
	Cleared time.Time
}

// FleetState is what was decided about a node.
type FleetState string

// The states of a node.
const (
	FleetActive   FleetState = "active"
	FleetCordoned FleetState = "cordoned" // it gets no new sandboxes
	FleetDraining FleetState = "draining" // its sessions are being moved
	FleetRemoved  FleetState = "removed"
)

const fleetQuery = "SELECT name, url, binding, state, lost, added, removed, cleared FROM fleet"

func scanFleetNode(row scanner) (n FleetNode, err error) {
	var lost, added, removed, cleared int64
	err = row.Scan(&n.Name, &n.URL, &n.Binding, &n.State, &lost, &added, &removed, &cleared)
	n.Lost, n.Added, n.Removed, n.Cleared = lost != 0, timeOf(added), timeOf(removed), timeOf(cleared)
	return n, err
}

// Fleet lists the nodes, also removed ones, by name.
func (o *Operator) Fleet(ctx context.Context) ([]FleetNode, error) {
	rows, err := o.tx.query(ctx, fleetQuery+" ORDER BY name")
	return collect(rows, err, scanFleetNode)
}

// AddFleetNode adds a node, or changes the address of one.
func (o *Operator) AddFleetNode(ctx context.Context, name, url string) error {
	_, err := o.tx.exec(ctx, `INSERT INTO fleet (name, url, binding, state, lost, added, removed, cleared) VALUES ($1, $2, '', $3, 0, $4, 0, 0)
		ON CONFLICT (name) DO UPDATE SET url = excluded.url`, name, url, string(FleetActive), nanos(o.tx.Now()))
	return err
}

// BindFleetNode records the tenant of a node that answered for the first time.
func (o *Operator) BindFleetNode(ctx context.Context, name, binding string) error {
	_, err := o.tx.exec(ctx, "UPDATE fleet SET binding = $1 WHERE name = $2 AND binding = ''", binding, name)
	return err
}

// ChangeFleetNode changes a node. Only State, Lost, Removed and Cleared change.
func (o *Operator) ChangeFleetNode(ctx context.Context, name string, change func(*FleetNode) error) (FleetNode, error) {
	n, err := scanFleetNode(o.tx.queryRow(ctx, fleetQuery+" WHERE name = $1"+o.tx.s.dialect.forUpdate(), name))
	if err != nil {
		return n, missing(err, "node", name)
	}
	if err := change(&n); err != nil {
		return n, err
	}
	lost := 0
	if n.Lost {
		lost = 1
	}
	_, err = o.tx.exec(ctx, "UPDATE fleet SET state = $1, lost = $2, removed = $3, cleared = $4 WHERE name = $5",
		string(n.State), lost, nanos(n.Removed), nanos(n.Cleared), name)
	return n, err
}

// FleetPrefix is the begin of the names of the providers of nodes.
const FleetPrefix = "node-"

// ErrNodeClosed is the cause of the error for a node that takes no new sandboxes.
var ErrNodeClosed = errors.New("the node takes no new sandboxes")

// NodeTakes returns CodeUnavailable if the node of a provider takes no new
// sandboxes. In a transaction that records one, it still does when that ends.
func (o *Operator) NodeTakes(ctx context.Context, provider string) error {
	name := strings.TrimPrefix(provider, FleetPrefix)
	n, err := scanFleetNode(o.tx.queryRow(ctx, fleetQuery+" WHERE name = $1"+o.tx.s.dialect.forShare(), name))
	if err == nil && n.State == FleetActive {
		return nil
	}
	if err == nil {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "node.place", Subject: provider, Message: "the node is " + string(n.State) + " now", Hint: "try again", Cause: ErrNodeClosed}
	}
	return missing(err, "node", name)
}

// SandboxesOf lists the sandboxes of a provider, of all tenants and daemons, that
// are not gone, by ID.
func (o *Operator) SandboxesOf(ctx context.Context, provider string) ([]Sandbox, error) {
	rows, err := o.tx.query(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE provider = $1 AND state <> 'gone' ORDER BY id", provider)
	return collect(rows, err, scanSandbox)
}

// ImagesOf lists the images of a tenant's sandboxes, also of those that are gone.
func (o *Operator) ImagesOf(ctx context.Context, tenant string) ([]string, error) {
	rows, err := o.tx.query(ctx, "SELECT DISTINCT image FROM sandboxes WHERE tenant = $1 AND image <> '' ORDER BY image", tenant)
	return collect(rows, err, func(row scanner) (image string, err error) { return image, row.Scan(&image) })
}

// Load sums up the sandboxes of a node daemon that are not gone: those of one
// tenant, or of all if it is empty. reserved is the memory of those that run.
func (o *Operator) Load(ctx context.Context, node, tenant string) (sandboxes int, reserved int64, err error) {
	err = o.tx.queryRow(ctx, `SELECT COUNT(*), COALESCE(SUM(CASE WHEN state = $1 THEN memory ELSE 0 END), 0) FROM sandboxes
		WHERE node = $2 AND state <> 'gone' AND ($3 = '' OR tenant = $3)`, string(sandbox.Running), node, tenant).Scan(&sandboxes, &reserved)
	return sandboxes, reserved, err
}
