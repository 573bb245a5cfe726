-- +goose Up

-- The images of templates in the blob store, for other daemons and for the time
-- after a loss of the machine. lent is the digest of the content; the others are as
-- those of snapshots.
CREATE TABLE template_images (
	tenant  TEXT NOT NULL REFERENCES tenants (id),
	image   TEXT NOT NULL,
	lent    TEXT NOT NULL,
	archive TEXT NOT NULL,
	version BIGINT NOT NULL,
	digest  TEXT NOT NULL,
	stored  BIGINT NOT NULL,
	PRIMARY KEY (tenant, image)
);
CREATE INDEX template_images_image ON template_images (image);
