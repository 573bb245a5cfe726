package store

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// Template is a tenant's name for an image that a build made.
type Template struct {
	sandbox.Template
	Tenant string
	// Ready is a script that succeeds when Start is ready. Snapshot was made
	// then, and may have been removed since.
	Ready string
}

const templateColumns = "tenant, name, tag, image, base, size, steps, created, build, cpus, memory, start, ready, snapshot"

func scanTemplate(row scanner) (t Template, err error) {
	var created int64
	err = row.Scan(&t.Tenant, &t.Name, &t.Tag, &t.Image, &t.Base, &t.Size, &t.Steps, &created, &t.Build, &t.CPUs, &t.Memory, &t.Start, &t.Ready, &t.Snapshot)
	t.Created = timeOf(created)
	return t, err
}

// Templates reads and changes the templates of tenants.
type Templates struct{ tx *Tx }

// Templates returns the methods for templates.
func (tx *Tx) Templates() Templates { return Templates{tx} }

// Set records a template; the name moves if it is taken.
func (ts Templates) Set(ctx context.Context, t Template) error {
	_, err := ts.tx.exec(ctx, "INSERT INTO templates ("+templateColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
		ON CONFLICT (tenant, name, tag) DO UPDATE SET image = excluded.image, base = excluded.base, size = excluded.size,
			steps = excluded.steps, created = excluded.created, build = excluded.build,
			cpus = excluded.cpus, memory = excluded.memory,
			start = excluded.start, ready = excluded.ready, snapshot = excluded.snapshot`,
		t.Tenant, t.Name, t.Tag, t.Image, t.Base, t.Size, t.Steps, nanos(t.Created), t.Build, t.CPUs, t.Memory, t.Start, t.Ready, t.Snapshot)
	return err
}

// Get returns a template of a tenant; another's is CodeNotFound.
func (ts Templates) Get(ctx context.Context, tenant, name, tag string) (Template, error) {
	t, err := scanTemplate(ts.tx.queryRow(ctx, "SELECT "+templateColumns+" FROM templates WHERE tenant = $1 AND name = $2 AND tag = $3", tenant, name, tag))
	return t, missing(err, "template", name+":"+tag)
}

// List lists the templates of a tenant by name and tag.
func (ts Templates) List(ctx context.Context, tenant string) ([]Template, error) {
	rows, err := ts.tx.query(ctx, "SELECT "+templateColumns+" FROM templates WHERE tenant = $1 ORDER BY name, tag", tenant)
	return collect(rows, err, scanTemplate)
}

// Snapshots returns the set of snapshots that templates of a tenant are
// made from.
func (ts Templates) Snapshots(ctx context.Context, tenant string) (map[string]bool, error) {
	all, err := ts.List(ctx, tenant)
	used := map[string]bool{}
	for _, t := range all {
		used[t.Snapshot] = true
	}
	return used, err
}

// Remove forgets a name. One that is not the tenant's is CodeNotFound.
func (ts Templates) Remove(ctx context.Context, tenant, name, tag string) error {
	n, err := ts.tx.exec(ctx, "DELETE FROM templates WHERE tenant = $1 AND name = $2 AND tag = $3", tenant, name, tag)
	return oneRow(n, err, "template", name+":"+tag)
}
