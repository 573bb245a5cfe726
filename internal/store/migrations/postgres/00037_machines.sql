-- +goose Up

-- Self-hosted machines. The tenant is empty while nobody has approved one. secret
-- is the hash of the code of a pending machine, or of the token of an invited one.
CREATE TABLE machines (
	id           TEXT NOT NULL PRIMARY KEY,
	tenant       TEXT NOT NULL,
	state        TEXT NOT NULL,
	public_key   TEXT NOT NULL,
	secret       TEXT NOT NULL,
	whole        BIGINT NOT NULL,
	created      BIGINT NOT NULL,
	expires      BIGINT NOT NULL,
	machine_json TEXT NOT NULL
);
CREATE INDEX machines_by_tenant ON machines (tenant, created, id);
CREATE UNIQUE INDEX machines_by_key ON machines (public_key) WHERE public_key <> '';
CREATE INDEX machines_by_secret ON machines (secret) WHERE secret <> '';
