-- +goose Up
-- Values are sealed, under the key whose id is key_id; see package secret. A
-- source other than '' says where the value is instead.
CREATE TABLE secrets (
	tenant      TEXT NOT NULL REFERENCES tenants (id),
	name        TEXT NOT NULL,
	version     INTEGER NOT NULL,
	description TEXT NOT NULL DEFAULT '',
	source      TEXT NOT NULL DEFAULT '',
	hosts_json  TEXT NOT NULL DEFAULT '[]',
	allow_env   INTEGER NOT NULL DEFAULT 0,
	key_id      TEXT NOT NULL DEFAULT '',
	sealed      BLOB NOT NULL,
	created     INTEGER NOT NULL,
	updated     INTEGER NOT NULL,
	PRIMARY KEY (tenant, name)
);

-- Which sandboxes work with a secret, and what stands for it in each. There is
-- no reference to secrets: one that leaked is removed at once, whoever uses it.
CREATE TABLE secret_uses (
	sandbox     TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	variable    TEXT NOT NULL,
	tenant      TEXT NOT NULL,
	secret      TEXT NOT NULL,
	placeholder TEXT NOT NULL,
	PRIMARY KEY (sandbox, variable)
);
CREATE INDEX secret_uses_secret ON secret_uses (tenant, secret);
