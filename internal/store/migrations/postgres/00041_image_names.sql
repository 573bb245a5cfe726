-- +goose Up

-- The names of imported images, for all daemons of the database. Their images are
-- saved as those of public templates of the tenant. image is empty for a name that was
-- removed. change identifies the import or removal.
CREATE TABLE image_names (
	name     TEXT NOT NULL,
	platform TEXT NOT NULL,
	tenant   TEXT NOT NULL REFERENCES tenants (id),
	image    TEXT NOT NULL,
	change   TEXT NOT NULL,
	changed  BIGINT NOT NULL,
	PRIMARY KEY (name, platform)
);
CREATE INDEX image_names_image ON image_names (image);
