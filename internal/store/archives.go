package store

import (
	"context"
)

// Archive is the part of the blob store that the snapshots of a tenant share.
type Archive struct {
	ID        string // names it in the blob store; never reused
	Tenant    string
	Encrypted bool
}

// Archived says where in the blob store a snapshot is.
type Archived struct {
	Archive   string // empty: stored on its node only
	Encrypted bool
	Version   int    // its version there
	Digest    string // digest of its content
	Stored    int64  // bytes that the archive grew by
}

func scanArchive(row scanner) (a Archive, err error) {
	var encrypted int64
	err = row.Scan(&a.ID, &a.Tenant, &encrypted)
	a.Encrypted = encrypted != 0
	return a, err
}

// EnsureArchive returns the tenant's archive of a kind. If there is none yet,
// it stores the given one.
func (ss Snapshots) EnsureArchive(ctx context.Context, a Archive) (Archive, error) {
	_, err := ss.tx.exec(ctx, `INSERT INTO archives (id, tenant, encrypted, created) VALUES ($1, $2, $3, $4)
		ON CONFLICT (tenant, encrypted) DO NOTHING`, a.ID, a.Tenant, flag(a.Encrypted), nanos(ss.tx.Now()))
	if err != nil {
		return Archive{}, err
	}
	found, err := scanArchive(ss.tx.queryRow(ctx, "SELECT id, tenant, encrypted FROM archives WHERE tenant = $1 AND encrypted = $2", a.Tenant, flag(a.Encrypted)))
	return found, missing(err, "archive", a.Tenant)
}

// Archives lists the archives of all tenants.
func (o *Operator) Archives(ctx context.Context) ([]Archive, error) {
	rows, err := o.tx.query(ctx, "SELECT id, tenant, encrypted FROM archives ORDER BY id")
	return collect(rows, err, scanArchive)
}

// Archive records that a snapshot is in the blob store too. If the snapshot was
// removed meanwhile, the error is CodeNotFound.
func (ss Snapshots) Archive(ctx context.Context, tenant, id string, at Archived) error {
	n, err := ss.tx.exec(ctx, "UPDATE snapshots SET archive = $1, version = $2, digest = $3, stored = $4, problem = '' WHERE tenant = $5 AND id = $6",
		at.Archive, at.Version, at.Digest, at.Stored, tenant, id)
	return oneRow(n, err, "snapshot", id)
}

// Blame records why a snapshot cannot be saved.
func (ss Snapshots) Blame(ctx context.Context, tenant, id, problem string) error {
	_, err := ss.tx.exec(ctx, "UPDATE snapshots SET problem = $1 WHERE tenant = $2 AND id = $3", problem, tenant, id)
	return err
}

// Unsaved lists the finished named snapshots of a node that are in no archive,
// of all tenants, by ID: at most limit with an ID after the given one.
func (o *Operator) Unsaved(ctx context.Context, node, after string, limit int) ([]Snapshot, error) {
	rows, err := o.tx.query(ctx, snapshotQuery+"s.node = $1 AND s.id > $2 AND s.archive = '' AND s.owner = '' AND s.ready = 1 ORDER BY s.id LIMIT $3",
		node, after, limit)
	return collect(rows, err, scanSnapshot)
}

// Filed says that a snapshot, or the image of a template, is in an archive.
type Filed struct {
	Subject string // the ID of the snapshot, or the digest of the image
	Version int    // in the archive
}

// FiledSnapshots lists the named snapshots of a node in an archive.
func (o *Operator) FiledSnapshots(ctx context.Context, archive, node string) ([]Filed, error) {
	rows, err := o.tx.query(ctx, "SELECT id, version FROM snapshots WHERE archive = $1 AND node = $2 AND owner = '' ORDER BY id", archive, node)
	return collect(rows, err, scanFiled)
}

// FiledImages lists the images of templates in an archive.
func (o *Operator) FiledImages(ctx context.Context, archive string) ([]Filed, error) {
	rows, err := o.tx.query(ctx, "SELECT image, version FROM template_images WHERE archive = $1 ORDER BY image", archive)
	return collect(rows, err, scanFiled)
}

func scanFiled(row scanner) (f Filed, err error) {
	err = row.Scan(&f.Subject, &f.Version)
	return f, err
}

// LoseSnapshot records that a snapshot is not in an archive any more, unless it was
// saved there again.
func (o *Operator) LoseSnapshot(ctx context.Context, archive string, f Filed) error {
	_, err := o.tx.exec(ctx, "UPDATE snapshots SET archive = '', version = 0, digest = '', stored = 0 WHERE id = $1 AND archive = $2 AND version = $3",
		f.Subject, archive, f.Version)
	return err
}

// LoseImage is LoseSnapshot of the image of templates.
func (o *Operator) LoseImage(ctx context.Context, archive string, f Filed) error {
	_, err := o.tx.exec(ctx, "DELETE FROM template_images WHERE image = $1 AND archive = $2 AND version = $3", f.Subject, archive, f.Version)
	return err
}
