package store

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Template is a tenant's name for an image that a build made.
type Template struct {
	durable.Template
	Tenant string
	// Ready is a script that succeeds when Start is ready. Snapshot was made
	// then, and may have been removed since.
	Ready string
	// Withheld is why other tenants may not use the template; empty if they may,
	// once it is published.
	Withheld string
}

// Reasons not to share a template.
const (
	WithheldLogin   = "login"   // its image needs a password
	WithheldDigest  = "digest"  // its image was named by the digest that it has on one machine
	WithheldUnknown = "unknown" // built by an earlier version
)

// withheld returns the error for a template that may not be public.
func (t *Template) withheld() error {
	e := &sandbox.Error{Code: sandbox.CodeDenied, Subject: clip(t.Name + ":" + t.Tag)}
	switch t.Withheld {
	case "":
		return nil
	case WithheldLogin:
		e.Message, e.Hint = "cannot be public: it was built from an image that needs a password", "build it from an image that every tenant may pull"
	case WithheldDigest:
		e.Message, e.Hint = "cannot be public: its image was named by its digest on this machine, which may belong to one tenant", "name the image as its registry does, and build the template again"
	default:
		e.Message, e.Hint = "cannot be public: an earlier version built it, and did not record whether its image needs a password", "build it again"
	}
	return e
}

const templateColumns = "tenant, name, tag, image, base, size, steps, created, build, cpus, memory, start, ready, snapshot, public, withheld"

func scanTemplate(row scanner) (t Template, err error) {
	var created, public int64
	err = row.Scan(&t.Tenant, &t.Name, &t.Tag, &t.Image, &t.Base, &t.Size, &t.Steps, &created, &t.Build, &t.CPUs, &t.Memory, &t.Start, &t.Ready, &t.Snapshot, &public, &t.Withheld)
	t.Created, t.Public = timeOf(created), public != 0
	return t, err
}

// Templates reads and changes the templates of tenants.
type Templates struct{ tx *Tx }

// Templates returns the methods for templates.
func (tx *Tx) Templates() Templates { return Templates{tx} }

// Set records a template; the name moves if it is taken. Tags of a public name
// are public. CodeDenied: the name is public and the template may not be.
func (ts Templates) Set(ctx context.Context, t Template) (Template, error) {
	if _, err := ts.tx.Tenants().Lock(ctx, t.Tenant); err != nil {
		return t, err
	}
	if err := ts.Fits(ctx, &t); err != nil {
		return t, err
	}
	if err := ts.tx.room(ctx, "templates", t.Tenant, maxTemplates); err != nil {
		return t, err
	}
	_, err := ts.tx.exec(ctx, "INSERT INTO templates ("+templateColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
		ON CONFLICT (tenant, name, tag) DO UPDATE SET image = excluded.image, base = excluded.base, size = excluded.size,
			steps = excluded.steps, created = excluded.created, build = excluded.build,
			cpus = excluded.cpus, memory = excluded.memory,
			start = excluded.start, ready = excluded.ready, snapshot = excluded.snapshot,
			public = excluded.public, withheld = excluded.withheld`,
		t.Tenant, t.Name, t.Tag, t.Image, t.Base, t.Size, t.Steps, nanos(t.Created), t.Build, t.CPUs, t.Memory, t.Start, t.Ready, t.Snapshot, flag(t.Public), t.Withheld)
	if err != nil {
		return t, err
	}
	return t, ts.forgetImages(ctx, t.Tenant)
}

// Fits sets whether a template will be public: its name decides. CodeDenied: the
// template may not be.
func (ts Templates) Fits(ctx context.Context, t *Template) error {
	var public int64
	err := ts.tx.queryRow(ctx, "SELECT COUNT(*) FROM templates WHERE tenant = $1 AND name = $2 AND public <> 0", t.Tenant, t.Name).Scan(&public)
	if t.Public = public > 0; err != nil || !t.Public {
		return err
	}
	return t.withheld()
}

// Publish lets other tenants use all tags of a name, or ends that, and returns
// the tags.
func (ts Templates) Publish(ctx context.Context, tenant, name string, public bool) ([]Template, error) {
	if _, err := ts.tx.Tenants().Lock(ctx, tenant); err != nil {
		return nil, err
	}
	rows, err := ts.tx.query(ctx, "SELECT "+templateColumns+" FROM templates WHERE tenant = $1 AND name = $2 ORDER BY tag", tenant, name)
	all, err := collect(rows, err, scanTemplate)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Public = public; public {
			if err := all[i].withheld(); err != nil {
				return nil, err
			}
		}
	}
	n, err := ts.tx.exec(ctx, "UPDATE templates SET public = $1 WHERE tenant = $2 AND name = $3", flag(public), tenant, name)
	return all, oneRow(n, err, "template", name)
}

// GetPublic returns a public template of a tenant that is not disabled. One
// that is not public is CodeNotFound.
func (ts Templates) GetPublic(ctx context.Context, tenant, name, tag string) (Template, error) {
	t, err := scanTemplate(ts.tx.queryRow(ctx, "SELECT "+templateColumns+` FROM templates WHERE tenant = $1 AND name = $2 AND tag = $3 AND public <> 0
		AND EXISTS (SELECT 1 FROM tenants WHERE id = $1 AND disabled = 0)`, tenant, name, tag))
	return t, missing(err, "template", tenant+"/"+name+":"+tag)
}

// Get returns a template of a tenant; another's is CodeNotFound.
func (ts Templates) Get(ctx context.Context, tenant, name, tag string) (Template, error) {
	t, err := scanTemplate(ts.tx.queryRow(ctx, "SELECT "+templateColumns+" FROM templates WHERE tenant = $1 AND name = $2 AND tag = $3", tenant, name, tag))
	return t, missing(err, "template", name+":"+tag)
}

// HasImage reports whether a template that a tenant may use, or an imported name, has
// an image, given by its digest.
func (ts Templates) HasImage(ctx context.Context, tenant, image string) (bool, error) {
	var n int
	err := ts.tx.queryRow(ctx, `SELECT COUNT(*) FROM `+wantedImages+` t WHERE image = $1 AND (tenant = $2 OR public <> 0
		AND EXISTS (SELECT 1 FROM tenants WHERE id = t.tenant AND disabled = 0))`, image, tenant).Scan(&n)
	return n > 0, err
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
	if _, err := ts.tx.Tenants().Lock(ctx, tenant); err != nil {
		return err
	}
	n, err := ts.tx.exec(ctx, "DELETE FROM templates WHERE tenant = $1 AND name = $2 AND tag = $3", tenant, name, tag)
	if err := oneRow(n, err, "template", name+":"+tag); err != nil {
		return err
	}
	return ts.forgetImages(ctx, tenant)
}
