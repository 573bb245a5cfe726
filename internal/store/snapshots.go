package store

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Snapshot is the record of a snapshot. The provider stores its content.
type Snapshot struct {
	durable.Snapshot
	Tenant string
	Owner  sandbox.ID // the paused or stopped sandbox that it belongs to, and with which it is removed; such a snapshot has no Name
	// Ref is the provider's reference, as JSON. Empty: an earlier version made it,
	// and the provider finds it by its ID.
	Ref     string
	Binding string // the account or machine that it belongs to; see Sandbox
	Node    string // where it is stored
	// Spec is the Spec of the parent, without values of its Env.
	Spec     sandbox.Spec
	Archived Archived
}

// Taken describes a complete snapshot.
type Taken struct {
	Memory bool   // processes and their memory, not only files
	Engine string // what wrote it
	Size   int64  // bytes
	Ref    string // of its provider, as JSON
}

const snapshotColumns = `id, tenant, name, owner, ready, memory, engine, size, parent, parent_name, provider, node, image,
	labels_json, spec_json, created, ref_json, binding`

// snapshotQuery also counts the children and reads the archive.
const snapshotQuery = "SELECT " + snapshotColumns + `, (SELECT COUNT(*) FROM sandboxes b
	WHERE b.tenant = s.tenant AND b.origin = s.id AND b.origin <> '' AND b.state <> 'gone'),
	archive, version, digest, stored, problem, COALESCE((SELECT encrypted FROM archives a WHERE a.id = s.archive), 0)
	FROM snapshots s WHERE `

func scanSnapshot(row scanner) (s Snapshot, err error) {
	var owner, parent, labels, spec string
	var ready, memory, created, encrypted int64
	at := &s.Archived
	err = row.Scan(&s.ID, &s.Tenant, &s.Name, &owner, &ready, &memory, &s.Engine, &s.Size, &parent, &s.ParentName,
		&s.Provider, &s.Node, &s.Image, &labels, &spec, &created, &s.Ref, &s.Binding, &s.Children,
		&at.Archive, &at.Version, &at.Digest, &at.Stored, &s.Problem, &encrypted)
	if err != nil {
		return s, err
	}
	at.Encrypted = encrypted != 0
	s.Owner, s.Parent, s.Ready, s.Memory, s.Created = sandbox.ID(owner), sandbox.ID(parent), ready != 0, memory != 0, timeOf(created)
	if s.Labels, err = parseLabels(labels); err != nil {
		return s, err
	}
	err = json.Unmarshal([]byte(spec), &s.Spec)
	s.Resources, s.Saved, s.Stored, s.Encrypted = s.Spec.Resources, at.Archive != "", at.Stored, at.Encrypted
	return s, err
}

// Snapshots reads and changes the records of tenants' snapshots and of the
// archives that hold them.
type Snapshots struct{ tx *Tx }

// Snapshots returns the methods for snapshots.
func (tx *Tx) Snapshots() Snapshots { return Snapshots{tx} }

// Create records a snapshot of a tenant before it is written. A name in use is
// CodeAlreadyExists, an exhausted quota CodeExhausted. Neither applies to
// snapshots with an Owner.
func (ss Snapshots) Create(ctx context.Context, tenant string, s Snapshot) (Snapshot, error) {
	t, err := ss.tx.Tenants().Lock(ctx, tenant)
	if err != nil {
		return s, err
	}
	if s.Owner == "" {
		if err := ss.allowed(ctx, &t, &s); err != nil {
			return s, err
		}
	}
	s.Tenant, s.Created = tenant, ss.tx.Now()
	docs, err := encode(&Sandbox{Summary: Summary{Sandbox: sandbox.Sandbox{Labels: s.Labels}}, Spec: s.Spec})
	if err != nil {
		return s, err
	}
	_, err = ss.tx.exec(ctx, "INSERT INTO snapshots ("+snapshotColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`,
		s.ID, tenant, s.Name, string(s.Owner), flag(s.Ready), flag(s.Memory), s.Engine, s.Size, string(s.Parent), s.ParentName,
		s.Provider, s.Node, s.Image, docs.labels, docs.spec, nanos(s.Created), s.Ref, s.Binding)
	if err != nil {
		return s, err
	}
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		if _, err := ss.tx.exec(ctx, "INSERT INTO snapshot_labels (snapshot, tenant, name, value) VALUES ($1, $2, $3, $4)",
			s.ID, tenant, name, s.Labels[name]); err != nil {
			return s, err
		}
	}
	return s, nil
}

// allowed checks whether a named snapshot may be created.
func (ss Snapshots) allowed(ctx context.Context, t *Tenant, s *Snapshot) error {
	if err := sandbox.ValidateName(s.Name); err != nil {
		return err
	}
	if err := sandbox.ValidateLabels(s.Labels); err != nil {
		return err
	}
	if !t.Disabled.IsZero() {
		return fail(sandbox.CodeDenied, t.ID, "the tenant is disabled")
	}
	var taken int
	if err := ss.tx.queryRow(ctx, "SELECT COUNT(*) FROM snapshots WHERE tenant = $1 AND (name = $2 OR id = $2)", t.ID, s.Name).Scan(&taken); err != nil {
		return err
	}
	if taken > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeAlreadyExists, Subject: s.Name, Message: "a snapshot with this name exists",
			Hint: "choose another name, or remove that snapshot first",
		}
	}
	if t.Limits == (operator.Limits{}) {
		return nil
	}
	used, err := ss.tx.Tenants().Usage(ctx, t.ID)
	if err != nil {
		return err
	}
	return quota.CheckSnapshot(t.Limits, used, 0)
}

// Finish records that a snapshot is complete. It is CodeExhausted if a named
// one does not fit into the tenant's quota.
func (ss Snapshots) Finish(ctx context.Context, tenant, id string, got Taken) error {
	t, err := ss.tx.Tenants().Lock(ctx, tenant)
	if err != nil {
		return err
	}
	s, err := ss.get(ctx, "s.tenant = $1 AND s.id = $2", tenant, id)
	if err != nil {
		return err
	}
	if t.Limits.SnapshotBytes > 0 && s.Owner == "" {
		used, err := ss.tx.Tenants().Usage(ctx, tenant)
		if err != nil {
			return err
		}
		used.Snapshots--
		used.SnapshotBytes -= s.Size
		if err := quota.CheckSnapshot(t.Limits, used, got.Size); err != nil {
			return err
		}
	}
	n, err := ss.tx.exec(ctx, "UPDATE snapshots SET ready = 1, memory = $1, engine = $2, size = $3, ref_json = $4 WHERE tenant = $5 AND id = $6",
		flag(got.Memory), got.Engine, got.Size, got.Ref, tenant, id)
	return oneRow(n, err, "snapshot", id)
}

// Move records a new reference and binding of a snapshot.
func (ss Snapshots) Move(ctx context.Context, tenant, id, binding, ref string) error {
	n, err := ss.tx.exec(ctx, "UPDATE snapshots SET binding = $1, ref_json = $2 WHERE tenant = $3 AND id = $4", binding, ref, tenant, id)
	return oneRow(n, err, "snapshot", id)
}

func (ss Snapshots) get(ctx context.Context, where string, tenant, ref string) (Snapshot, error) {
	s, err := scanSnapshot(ss.tx.queryRow(ctx, snapshotQuery+where, tenant, ref))
	return s, missing(err, "snapshot", ref)
}

// Get returns a named snapshot of a tenant, by name or id. A missing snapshot,
// or one of another tenant, is CodeNotFound.
func (ss Snapshots) Get(ctx context.Context, tenant, ref string) (Snapshot, error) {
	return ss.get(ctx, "s.tenant = $1 AND s.owner = '' AND (s.name = $2 OR s.id = $2)", tenant, ref)
}

// List lists a tenant's named snapshots with all of the labels, newest
// first, as [Sandboxes.List] lists sandboxes.
func (ss Snapshots) List(ctx context.Context, tenant string, labels map[string]string, p Page) (all []Snapshot, next string, err error) {
	limit, err := p.limit()
	if err != nil {
		return nil, "", err
	}
	q := conditions{}
	q.add("s.tenant = ? AND s.owner = ''", tenant)
	if p.Cursor != "" {
		created, id, err := parseCursor(p.Cursor)
		if err != nil {
			return nil, "", err
		}
		q.add("(s.created, s.id) < (?, ?)", created, id)
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		q.add("s.id IN (SELECT snapshot FROM snapshot_labels WHERE tenant = ? AND name = ? AND value = ?)", tenant, name, labels[name])
	}
	rows, err := ss.tx.query(ctx, snapshotQuery+q.String()+" ORDER BY s.created DESC, s.id DESC LIMIT "+strconv.Itoa(limit+1), q.args...)
	all, err = collect(rows, err, scanSnapshot)
	if err != nil || len(all) <= limit {
		return all, "", err
	}
	last := all[limit-1]
	return all[:limit], formatCursor(nanos(last.Created), last.ID), nil
}

// Delete removes the record of a snapshot. A missing snapshot is success.
func (ss Snapshots) Delete(ctx context.Context, tenant, id string) error {
	_, err := ss.tx.exec(ctx, "DELETE FROM snapshots WHERE tenant = $1 AND id = $2", tenant, id)
	return err
}

// Snapshots lists the snapshots of all tenants that a node stores, by ID: at
// most limit with an ID after the given one.
func (o *Operator) Snapshots(ctx context.Context, node, after string, limit int) ([]Snapshot, error) {
	rows, err := o.tx.query(ctx, snapshotQuery+"s.node = $1 AND s.id > $2 ORDER BY s.id LIMIT $3", node, after, limit)
	return collect(rows, err, scanSnapshot)
}

// Snapshot returns a snapshot of any tenant by its ID.
func (o *Operator) Snapshot(ctx context.Context, id string) (Snapshot, error) {
	s, err := scanSnapshot(o.tx.queryRow(ctx, snapshotQuery+"s.id = $1", id))
	return s, missing(err, "snapshot", id)
}
