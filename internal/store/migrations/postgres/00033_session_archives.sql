-- +goose Up

-- What is kept of the sandboxes of sessions: candidate, current, previous,
-- delete_pending, deleting or delete_failed. What was deleted has no row. due is
-- when something is to be done next about a row that is to go.
CREATE TABLE session_archives (
	tenant       TEXT NOT NULL REFERENCES tenants (id),
	ref          TEXT NOT NULL,
	grp          TEXT NOT NULL,
	archive_json TEXT NOT NULL,
	state        TEXT NOT NULL,
	tries        BIGINT NOT NULL,
	due          BIGINT NOT NULL,
	PRIMARY KEY (tenant, ref)
);
CREATE INDEX session_archives_by_group ON session_archives (tenant, grp);
CREATE INDEX session_archives_by_due ON session_archives (due);

-- Which sandbox served a group at each epoch. ended is 0 while it does.
CREATE TABLE lease_epochs (
	tenant   TEXT NOT NULL REFERENCES tenants (id),
	grp      TEXT NOT NULL,
	epoch    BIGINT NOT NULL,
	provider TEXT NOT NULL,
	sandbox  TEXT NOT NULL,
	holders  TEXT NOT NULL,
	began    BIGINT NOT NULL,
	ended    BIGINT NOT NULL,
	why      TEXT NOT NULL,
	PRIMARY KEY (tenant, grp, epoch)
);
