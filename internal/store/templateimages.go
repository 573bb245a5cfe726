package store

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// TemplateImage is the image of one or more templates or imported names of a tenant.
type TemplateImage struct {
	Tenant string
	Image  string // its digest
	// Lent is the digest of its content, under which other machines have it. It is
	// empty if the image is not in the blob store.
	Lent     string
	Archived Archived
}

const imageQuery = `SELECT i.tenant, i.image, i.lent, i.archive, i.version, i.digest, i.stored,
	COALESCE((SELECT encrypted FROM archives a WHERE a.id = i.archive), 0) FROM template_images i WHERE `

func scanImage(row scanner) (i TemplateImage, err error) {
	var encrypted int64
	at := &i.Archived
	err = row.Scan(&i.Tenant, &i.Image, &i.Lent, &at.Archive, &at.Version, &at.Digest, &at.Stored, &encrypted)
	at.Encrypted = encrypted != 0
	return i, err
}

// SaveImage records that an image is in the blob store. CodeNotFound: no template
// and no name has it any more. CodeAlreadyExists: another daemon has saved it.
func (ts Templates) SaveImage(ctx context.Context, i TemplateImage) error {
	if _, err := ts.tx.Tenants().Lock(ctx, i.Tenant); err != nil {
		return err
	}
	var used int
	err := ts.tx.queryRow(ctx, "SELECT COUNT(*) FROM "+wantedImages+" t WHERE tenant = $1 AND image = $2", i.Tenant, i.Image).Scan(&used)
	if err != nil {
		return err
	}
	if used == 0 {
		return fail(sandbox.CodeNotFound, i.Image, "no template and no name has the image")
	}
	at := i.Archived
	n, err := ts.tx.exec(ctx, `INSERT INTO template_images (tenant, image, lent, archive, version, digest, stored) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (tenant, image) DO NOTHING`, i.Tenant, i.Image, i.Lent, at.Archive, at.Version, at.Digest, at.Stored)
	if err == nil && n == 0 {
		err = fail(sandbox.CodeAlreadyExists, i.Image, "the image is saved")
	}
	return err
}

// SavedImage returns an image in the blob store, given by its digest, that a template
// has which a tenant may use, or a name. There is none: CodeNotFound.
func (ts Templates) SavedImage(ctx context.Context, tenant, image string) (TemplateImage, error) {
	i, err := scanImage(ts.tx.queryRow(ctx, imageQuery+`i.image = $1 AND EXISTS (SELECT 1 FROM `+wantedImages+` t WHERE t.tenant = i.tenant AND t.image = i.image
		AND (t.tenant = $2 OR t.public <> 0 AND EXISTS (SELECT 1 FROM tenants WHERE id = t.tenant AND disabled = 0)))
		ORDER BY CASE WHEN i.tenant = $2 THEN 0 ELSE 1 END, i.tenant LIMIT 1`, image, tenant))
	return i, missing(err, "image", image)
}

// forgetImages removes the records of images that no template and no name of a tenant
// has.
func (ts Templates) forgetImages(ctx context.Context, tenant string) error {
	_, err := ts.tx.exec(ctx, `DELETE FROM template_images WHERE tenant = $1
		AND NOT EXISTS (SELECT 1 FROM `+wantedImages+` t WHERE t.tenant = template_images.tenant AND t.image = template_images.image)`, tenant)
	return err
}

// UnsavedImages lists the images of templates and names that are not in the blob store, of all
// tenants, by tenant and digest: at most limit after the given one.
func (o *Operator) UnsavedImages(ctx context.Context, after TemplateImage, limit int) ([]TemplateImage, error) {
	rows, err := o.tx.query(ctx, `SELECT DISTINCT tenant, image FROM `+wantedImages+` t WHERE (tenant > $1 OR tenant = $1 AND image > $2)
		AND NOT EXISTS (SELECT 1 FROM template_images i WHERE i.tenant = t.tenant AND i.image = t.image) ORDER BY tenant, image LIMIT $3`,
		after.Tenant, after.Image, limit)
	return collect(rows, err, func(row scanner) (i TemplateImage, err error) {
		return i, row.Scan(&i.Tenant, &i.Image)
	})
}

// TemplateImage returns the image of a tenant's templates and names by its digest.
// CodeNotFound: none has it.
func (o *Operator) TemplateImage(ctx context.Context, tenant, image string) (TemplateImage, error) {
	i, err := scanImage(o.tx.queryRow(ctx, `SELECT t.tenant, t.image, COALESCE(i.lent, ''), COALESCE(i.archive, ''), COALESCE(i.version, 0), COALESCE(i.digest, ''), COALESCE(i.stored, 0), 0
		FROM `+wantedImages+` t LEFT JOIN template_images i ON i.tenant = t.tenant AND i.image = t.image WHERE t.tenant = $1 AND t.image = $2 LIMIT 1`, tenant, image))
	return i, missing(err, "image", image)
}
