-- Times are nanoseconds since 1970 in UTC, durations nanoseconds, 0 means
-- none. Columns named doc or ending in _json hold JSON.

-- +goose Up
CREATE TABLE settings (
	name  TEXT PRIMARY KEY,
	value TEXT NOT NULL
);

CREATE TABLE tenants (
	id       TEXT PRIMARY KEY,
	created  INTEGER NOT NULL,
	disabled INTEGER NOT NULL DEFAULT 0,
	limits_json TEXT NOT NULL DEFAULT '{}',
	version  INTEGER NOT NULL DEFAULT 1
);

CREATE TABLE nodes (
	id        TEXT PRIMARY KEY,
	instance  TEXT NOT NULL,
	address   TEXT NOT NULL DEFAULT '',
	release   TEXT NOT NULL DEFAULT '',
	started   INTEGER NOT NULL,
	heartbeat INTEGER NOT NULL
);

CREATE TABLE sandboxes (
	id       TEXT PRIMARY KEY,
	tenant   TEXT NOT NULL REFERENCES tenants (id),
	name     TEXT NOT NULL,
	state    TEXT NOT NULL,
	reason   TEXT NOT NULL DEFAULT '',
	provider TEXT NOT NULL DEFAULT '',
	node     TEXT NOT NULL DEFAULT '',
	image    TEXT NOT NULL DEFAULT '',
	-- What the sandbox really gets, counted against the quota.
	cpus     REAL NOT NULL DEFAULT 0,
	memory   INTEGER NOT NULL DEFAULT 0,
	disk     INTEGER NOT NULL DEFAULT 0,
	pids     INTEGER NOT NULL DEFAULT 0,
	labels_json TEXT NOT NULL DEFAULT '{}',
	spec_json   TEXT NOT NULL,
	exit_json   TEXT NOT NULL DEFAULT '',
	created  INTEGER NOT NULL,
	updated  INTEGER NOT NULL,
	expires  INTEGER NOT NULL DEFAULT 0,
	active   INTEGER NOT NULL DEFAULT 0,
	idle_after  INTEGER NOT NULL DEFAULT 0,
	idle_action TEXT NOT NULL DEFAULT '',
	-- The fencing number of whoever holds the sandbox; leases raise it.
	epoch    INTEGER NOT NULL DEFAULT 0,
	version  INTEGER NOT NULL DEFAULT 1
);
-- A name is free again when its sandbox is gone, and not before.
CREATE UNIQUE INDEX sandboxes_living_name ON sandboxes (tenant, name) WHERE state <> 'gone';
CREATE INDEX sandboxes_page ON sandboxes (tenant, created, id);
CREATE INDEX sandboxes_node ON sandboxes (node, id);
CREATE INDEX sandboxes_expiry ON sandboxes (expires) WHERE expires > 0 AND state <> 'gone';
CREATE INDEX sandboxes_idle ON sandboxes (active) WHERE idle_after > 0 AND state = 'running';
CREATE INDEX sandboxes_gone ON sandboxes (updated) WHERE state = 'gone';

CREATE TABLE sandbox_labels (
	sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	tenant  TEXT NOT NULL,
	name    TEXT NOT NULL,
	value   TEXT NOT NULL,
	PRIMARY KEY (sandbox, name)
);
CREATE INDEX sandbox_labels_find ON sandbox_labels (tenant, name, value, sandbox);

-- The key itself is not stored: see idempotency.go.
CREATE TABLE idempotency (
	tenant      TEXT NOT NULL REFERENCES tenants (id),
	key_hash    BLOB NOT NULL,
	fingerprint BLOB NOT NULL,
	sandbox     TEXT NOT NULL,
	created     INTEGER NOT NULL,
	PRIMARY KEY (tenant, key_hash)
);
CREATE INDEX idempotency_age ON idempotency (created);

CREATE TABLE keys (
	id      TEXT PRIMARY KEY,
	tenant  TEXT NOT NULL REFERENCES tenants (id),
	name    TEXT NOT NULL DEFAULT '',
	hash    BLOB NOT NULL,
	verbs   TEXT NOT NULL,
	created INTEGER NOT NULL,
	expires INTEGER NOT NULL DEFAULT 0,
	revoked INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX keys_tenant ON keys (tenant, created, id);
