-- +goose Up
-- What a profile says now, and every version that it had. See package policy.
CREATE TABLE profiles (
	tenant  TEXT NOT NULL REFERENCES tenants (id),
	name    TEXT NOT NULL,
	version BIGINT NOT NULL,
	doc     TEXT NOT NULL,
	created BIGINT NOT NULL,
	updated BIGINT NOT NULL,
	PRIMARY KEY (tenant, name)
);

CREATE TABLE profile_versions (
	tenant  TEXT NOT NULL,
	name    TEXT NOT NULL,
	version BIGINT NOT NULL,
	doc     TEXT NOT NULL,
	created BIGINT NOT NULL,
	PRIMARY KEY (tenant, name, version),
	FOREIGN KEY (tenant, name) REFERENCES profiles (tenant, name) ON DELETE CASCADE
);

-- Which sandboxes work by a profile; one that is gone does not count.
CREATE TABLE profile_uses (
	sandbox TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
	tenant  TEXT NOT NULL,
	profile TEXT NOT NULL,
	FOREIGN KEY (tenant, profile) REFERENCES profiles (tenant, name)
);
CREATE INDEX profile_uses_profile ON profile_uses (tenant, profile);
