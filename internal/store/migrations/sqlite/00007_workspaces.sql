-- +goose Up
-- The content of a workspace is in the blob store; here is whose it is, and
-- which sandboxes have it.
CREATE TABLE workspaces (
	id        TEXT PRIMARY KEY,
	tenant    TEXT NOT NULL REFERENCES tenants (id),
	name      TEXT NOT NULL,
	encrypted INTEGER NOT NULL DEFAULT 0,
	max_bytes INTEGER NOT NULL DEFAULT 0,
	-- What kept the last state from being persisted.
	problem   TEXT NOT NULL DEFAULT '',
	removing  INTEGER NOT NULL DEFAULT 0,
	created   INTEGER NOT NULL
);
CREATE UNIQUE INDEX workspaces_name ON workspaces (tenant, name);

CREATE TABLE attachments (
	sandbox   TEXT PRIMARY KEY, -- its record may be forgotten earlier
	workspace TEXT NOT NULL REFERENCES workspaces (id),
	node      TEXT NOT NULL,
	mode      TEXT NOT NULL,
	created   INTEGER NOT NULL
);
CREATE INDEX attachments_workspace ON attachments (workspace);
CREATE INDEX attachments_node ON attachments (node);
