package store

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// ImageName is a name that an import gave to an image of one platform. All daemons of
// the database know it.
type ImageName struct {
	Name     string
	Platform string
	Tenant   string // whose archive has the image
	Image    string // digest; empty: the name was removed
	Change   string // identifies the import or the removal
}

// wantedImages has the tenant, the digest and whether all tenants may use it, of each
// template and of each imported name.
const wantedImages = `(SELECT tenant, image, public FROM templates UNION ALL SELECT tenant, image, 1 FROM image_names WHERE image <> '')`

func scanImageName(row scanner) (n ImageName, err error) {
	return n, row.Scan(&n.Name, &n.Platform, &n.Tenant, &n.Image, &n.Change)
}

// ImageName returns a name, also one that was removed. CodeNotFound: it is not known.
func (ts Templates) ImageName(ctx context.Context, name, platform string) (ImageName, error) {
	n, err := scanImageName(ts.tx.queryRow(ctx, "SELECT name, platform, tenant, image, change FROM image_names WHERE name = $1 AND platform = $2", name, platform))
	return n, missing(err, "image", name)
}

// ImageNames lists all names, also those that were removed.
func (o *Operator) ImageNames(ctx context.Context) ([]ImageName, error) {
	rows, err := o.tx.query(ctx, "SELECT name, platform, tenant, image, change FROM image_names ORDER BY name, platform")
	return collect(rows, err, scanImageName)
}

// SetImageName records a change of a name that follows the change over, which is empty
// for a name that is not known. CodeConflict: another change came first.
func (ts Templates) SetImageName(ctx context.Context, n ImageName, over string) error {
	if _, err := ts.tx.Tenants().Lock(ctx, n.Tenant); err != nil {
		return err
	}
	query := `UPDATE image_names SET tenant = $3, image = $4, change = $5, changed = $6 WHERE name = $1 AND platform = $2 AND change = $7`
	args := []any{n.Name, n.Platform, n.Tenant, n.Image, n.Change, nanos(ts.tx.Now()), over}
	if over == "" {
		query = `INSERT INTO image_names (name, platform, tenant, image, change, changed) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name, platform) DO NOTHING`
		args = args[:6]
	}
	count, err := ts.tx.exec(ctx, query, args...)
	if err != nil {
		return err
	}
	if count == 0 {
		return fail(sandbox.CodeConflict, n.Name, "the name was changed meanwhile")
	}
	return ts.forgetImages(ctx, n.Tenant)
}

// ForgetImageNames forgets the names that were removed before a time.
func (o *Operator) ForgetImageNames(ctx context.Context, before time.Time) error {
	_, err := o.tx.exec(ctx, "DELETE FROM image_names WHERE image = '' AND changed < $1", nanos(before))
	return err
}
