-- +goose Up
-- A name of a tenant for an image that a build made. What the image was built
-- from is not kept: it may hold what its author takes for a secret.
CREATE TABLE templates (
	tenant  TEXT NOT NULL REFERENCES tenants (id),
	name    TEXT NOT NULL,
	tag     TEXT NOT NULL,
	image   TEXT NOT NULL,
	base    TEXT NOT NULL,
	size    BIGINT NOT NULL,
	steps   BIGINT NOT NULL,
	created BIGINT NOT NULL,
	PRIMARY KEY (tenant, name, tag)
);
CREATE INDEX templates_image ON templates (tenant, image);
