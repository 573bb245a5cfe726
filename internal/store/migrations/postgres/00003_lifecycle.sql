-- Sandboxes that rest: paused in memory or to disk, stopped, or on the way
-- there and back. And snapshots, the named ones of tenants and those that hold
-- the state of one sandbox.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN pause TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN step TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN kept TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN wakes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN time_left BIGINT NOT NULL DEFAULT 0;
-- The snapshot it was made from.
ALTER TABLE sandboxes ADD COLUMN origin TEXT NOT NULL DEFAULT '';
CREATE INDEX sandboxes_origin ON sandboxes (tenant, origin) WHERE origin <> '' AND state <> 'gone';

CREATE TABLE snapshots (
	id       TEXT PRIMARY KEY,
	tenant   TEXT NOT NULL REFERENCES tenants (id),
	-- Empty for one that holds the state of the sandbox "owner".
	name     TEXT NOT NULL DEFAULT '',
	owner    TEXT NOT NULL DEFAULT '',
	ready    BIGINT NOT NULL DEFAULT 0,
	memory   BIGINT NOT NULL DEFAULT 0,
	engine   TEXT NOT NULL DEFAULT '',
	size     BIGINT NOT NULL DEFAULT 0,
	parent      TEXT NOT NULL DEFAULT '',
	parent_name TEXT NOT NULL DEFAULT '',
	provider TEXT NOT NULL DEFAULT '',
	node     TEXT NOT NULL DEFAULT '',
	image    TEXT NOT NULL DEFAULT '',
	labels_json TEXT NOT NULL DEFAULT '{}',
	spec_json   TEXT NOT NULL DEFAULT '{}',
	created  BIGINT NOT NULL
);
CREATE UNIQUE INDEX snapshots_name ON snapshots (tenant, name) WHERE name <> '';
CREATE INDEX snapshots_page ON snapshots (tenant, created, id);
CREATE INDEX snapshots_node ON snapshots (node, id);

CREATE TABLE snapshot_labels (
	snapshot TEXT NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
	tenant   TEXT NOT NULL,
	name     TEXT NOT NULL,
	value    TEXT NOT NULL,
	PRIMARY KEY (snapshot, name)
);
CREATE INDEX snapshot_labels_find ON snapshot_labels (tenant, name, value, snapshot);
