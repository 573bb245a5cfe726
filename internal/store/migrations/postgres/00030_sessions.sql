-- +goose Up
CREATE TABLE sessions (
	tenant       TEXT NOT NULL REFERENCES tenants (id),
	id           TEXT NOT NULL PRIMARY KEY,
	name         TEXT NOT NULL,
	grp          TEXT NOT NULL,
	session_json TEXT NOT NULL,
	prior_json   TEXT NOT NULL,
	created      BIGINT NOT NULL,
	updated      BIGINT NOT NULL,
	UNIQUE (tenant, name)
);
CREATE INDEX sessions_by_group ON sessions (tenant, grp);

-- What a lease holds is decided by internal/lease, one transaction per
-- operation. state is a copy for the reaper.
CREATE TABLE leases (
	tenant     TEXT NOT NULL REFERENCES tenants (id),
	grp        TEXT NOT NULL,
	state      TEXT NOT NULL,
	lease_json TEXT NOT NULL,
	updated    BIGINT NOT NULL,
	PRIMARY KEY (tenant, grp)
);
CREATE INDEX leases_by_state ON leases (state);

-- How long groups had a sandbox, in nanoseconds per hour.
CREATE TABLE warm_time (
	tenant      TEXT NOT NULL REFERENCES tenants (id),
	grp         TEXT NOT NULL,
	provider    TEXT NOT NULL,
	labels_json TEXT NOT NULL,
	hour        BIGINT NOT NULL,
	warm        BIGINT NOT NULL,
	PRIMARY KEY (tenant, grp, provider, labels_json, hour)
);
