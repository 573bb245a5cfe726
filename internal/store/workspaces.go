package store

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Workspace is the stored record of a workspace, without its content.
type Workspace struct {
	durable.Workspace // without Attached and Latest
	Tenant            string
	Removing          bool // part of its content may already be removed
}

// Attachment records that a sandbox uses a workspace.
type Attachment struct {
	durable.Attachment
	Workspace string // the workspace's id
	Node      string
	Bridge    Bridge
}

// Bridge says how a sandbox accesses a workspace.
type Bridge int64

// The ways to access a workspace.
const (
	Mounted Bridge = iota // the directory itself
	Copying               // a copy that is not complete yet
	Copied                // a copy
)

const workspaceQuery = "SELECT id, tenant, name, encrypted, max_bytes, problem, removing, created, bucket FROM workspaces WHERE "

func scanWorkspace(row scanner) (w Workspace, err error) {
	var encrypted, removing, created int64
	err = row.Scan(&w.ID, &w.Tenant, &w.Name, &encrypted, &w.MaxBytes, &w.Problem, &removing, &created, &w.Bucket)
	w.Encrypted, w.Removing, w.Created = encrypted != 0, removing != 0, timeOf(created)
	return w, err
}

const attachmentColumns = "a.sandbox, a.workspace, a.node, a.mode, a.created, a.bridge"

func scanAttachment(row scanner) (a Attachment, err error) {
	var created int64
	err = row.Scan(&a.Sandbox, &a.Workspace, &a.Node, &a.Mode, &created, &a.Bridge)
	a.Since = timeOf(created)
	return a, err
}

// Workspaces reads and changes the workspaces of tenants and their attachments to
// sandboxes.
type Workspaces struct{ tx *Tx }

// Workspaces returns the methods for workspaces.
func (tx *Tx) Workspaces() Workspaces { return Workspaces{tx} }

// Add records a workspace, whose ID must be new. A name that the tenant already
// uses is CodeAlreadyExists, and so is a bucket of another workspace of the
// tenant.
func (ws Workspaces) Add(ctx context.Context, w Workspace) error {
	if err := ws.tx.room(ctx, "workspaces", w.Tenant, maxWorkspaces); err != nil {
		return err
	}
	n, err := ws.tx.exec(ctx, `INSERT INTO workspaces (id, tenant, name, encrypted, max_bytes, created, bucket) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT DO NOTHING`, w.ID, w.Tenant, w.Name, flag(w.Encrypted), w.MaxBytes, nanos(ws.tx.Now()), w.Bucket)
	if err != nil || n > 0 {
		return err
	}
	other, err := scanWorkspace(ws.tx.queryRow(ctx, workspaceQuery+"tenant = $1 AND bucket = $2 AND name <> $3", w.Tenant, w.Bucket, w.Name))
	if err == nil && w.Bucket != "" {
		return fail(sandbox.CodeAlreadyExists, w.Bucket, "the workspace %s is that bucket", other.Name)
	}
	return fail(sandbox.CodeAlreadyExists, w.Name, "a workspace of that name exists")
}

// Get returns a workspace of a tenant by its name; an unknown one is
// CodeNotFound.
func (ws Workspaces) Get(ctx context.Context, tenant, name string) (Workspace, error) {
	w, err := scanWorkspace(ws.tx.queryRow(ctx, workspaceQuery+"tenant = $1 AND name = $2", tenant, name))
	return w, missing(err, "workspace", name)
}

// Lock is like Get. Until the transaction ends, others cannot attach or change
// it.
func (ws Workspaces) Lock(ctx context.Context, tenant, name string) (Workspace, error) {
	w, err := scanWorkspace(ws.tx.queryRow(ctx, workspaceQuery+"tenant = $1 AND name = $2"+ws.tx.s.dialect.forUpdate(), tenant, name))
	return w, missing(err, "workspace", name)
}

// WorkspaceByID returns a workspace of any tenant.
func (o *Operator) WorkspaceByID(ctx context.Context, id string) (Workspace, error) {
	w, err := scanWorkspace(o.tx.queryRow(ctx, workspaceQuery+"id = $1", id))
	return w, missing(err, "workspace", id)
}

// List lists the workspaces of a tenant by name.
func (ws Workspaces) List(ctx context.Context, tenant string) ([]Workspace, error) {
	rows, err := ws.tx.query(ctx, workspaceQuery+"tenant = $1 ORDER BY name", tenant)
	return collect(rows, err, scanWorkspace)
}

// Set changes the mutable fields of a workspace: Problem and Removing.
func (ws Workspaces) Set(ctx context.Context, w Workspace) error {
	_, err := ws.tx.exec(ctx, "UPDATE workspaces SET problem = $1, removing = $2 WHERE id = $3", w.Problem, flag(w.Removing), w.ID)
	return err
}

// Remove removes the record of a workspace. It must not be attached.
func (ws Workspaces) Remove(ctx context.Context, id string) error {
	_, err := ws.tx.exec(ctx, "DELETE FROM workspaces WHERE id = $1", id)
	return err
}

// Attachments lists the sandboxes that use a workspace, oldest first.
func (ws Workspaces) Attachments(ctx context.Context, workspace string) ([]Attachment, error) {
	rows, err := ws.tx.query(ctx, "SELECT "+attachmentColumns+" FROM attachments a WHERE a.workspace = $1 ORDER BY a.created, a.sandbox", workspace)
	return collect(rows, err, scanAttachment)
}

// Attach records that a sandbox uses a workspace, which the caller has locked.
// If another sandbox uses it, the error is CodeConflict, unless both only read,
// both share it, or the sandbox replaces the other one on the same node.
func (ws Workspaces) Attach(ctx context.Context, w Workspace, a Attachment, replaces sandbox.ID) error {
	others, err := ws.Attachments(ctx, w.ID)
	if err != nil {
		return err
	}
	for _, other := range others {
		if succeeds := other.Sandbox == replaces && other.Node == a.Node; !succeeds && !together(&a, &other) {
			return &sandbox.Error{
				Code: sandbox.CodeConflict, Subject: w.Name, Message: "the workspace is attached to the sandbox " + string(other.Sandbox),
				Hint: "remove that sandbox first",
			}
		}
	}
	_, err = ws.tx.exec(ctx, "INSERT INTO attachments (sandbox, workspace, node, mode, created) VALUES ($1, $2, $3, $4, $5)",
		string(a.Sandbox), w.ID, a.Node, string(a.Mode), nanos(ws.tx.Now()))
	return err
}

// SetBridge records how a sandbox accesses a workspace.
func (ws Workspaces) SetBridge(ctx context.Context, a Attachment) error {
	_, err := ws.tx.exec(ctx, "UPDATE attachments SET bridge = $1 WHERE sandbox = $2 AND workspace = $3", int64(a.Bridge), string(a.Sandbox), a.Workspace)
	return err
}

// Bridged lists the attachments of a node that are complete, writable copies.
func (o *Operator) Bridged(ctx context.Context, node string) ([]Attachment, error) {
	rows, err := o.tx.query(ctx, "SELECT "+attachmentColumns+" FROM attachments a WHERE a.node = $1 AND a.bridge = $2 AND a.mode <> $3 ORDER BY a.created, a.sandbox",
		node, int64(Copied), string(sandbox.WorkspaceRead))
	return collect(rows, err, scanAttachment)
}

// together reports whether two sandboxes can use one workspace.
func together(a, b *Attachment) bool {
	return a.Mode == b.Mode && (a.Mode == sandbox.WorkspaceRead || a.Mode == sandbox.WorkspaceShared && a.Node == b.Node)
}

// Detach removes the attachment of a workspace to a sandbox.
func (ws Workspaces) Detach(ctx context.Context, a Attachment) error {
	_, err := ws.tx.exec(ctx, "DELETE FROM attachments WHERE sandbox = $1 AND workspace = $2", string(a.Sandbox), a.Workspace)
	return err
}

// Held is a workspace that a sandbox uses.
type Held struct {
	Attachment Attachment
	Workspace  Workspace
}

// Held returns the workspaces that a sandbox uses, in any order.
func (ws Workspaces) Held(ctx context.Context, id sandbox.ID) ([]Held, error) {
	rows, err := ws.tx.query(ctx, "SELECT "+attachmentColumns+" FROM attachments a WHERE a.sandbox = $1", string(id))
	all, err := collect(rows, err, scanAttachment)
	held := make([]Held, len(all))
	for i, a := range all {
		w, err := scanWorkspace(ws.tx.queryRow(ctx, workspaceQuery+"id = $1", a.Workspace))
		if err != nil {
			return nil, missing(err, "workspace", a.Workspace)
		}
		held[i] = Held{a, w}
	}
	return held, err
}

// Ended lists the attachments of a node whose sandboxes are gone.
func (o *Operator) Ended(ctx context.Context, node string) ([]Attachment, error) {
	rows, err := o.tx.query(ctx, "SELECT "+attachmentColumns+" FROM attachments a LEFT JOIN sandboxes s ON s.id = a.sandbox WHERE a.node = $1 AND (s.id IS NULL OR s.state = 'gone') ORDER BY a.created", node)
	return collect(rows, err, scanAttachment)
}
