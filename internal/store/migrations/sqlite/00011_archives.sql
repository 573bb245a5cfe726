-- Snapshots in the blob store, where all daemons find them.

-- +goose Up
-- What of a tenant's snapshots shares its pieces.
CREATE TABLE archives (
	id        TEXT PRIMARY KEY,
	tenant    TEXT NOT NULL REFERENCES tenants (id),
	encrypted INTEGER NOT NULL DEFAULT 0,
	created   INTEGER NOT NULL
);
CREATE UNIQUE INDEX archives_tenant ON archives (tenant, encrypted);

-- Empty while its bytes are on their node only.
ALTER TABLE snapshots ADD COLUMN archive TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE snapshots ADD COLUMN digest TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;
-- What kept them from being saved.
ALTER TABLE snapshots ADD COLUMN problem TEXT NOT NULL DEFAULT '';
CREATE INDEX snapshots_unsaved ON snapshots (node, id) WHERE archive = '' AND owner = '';
