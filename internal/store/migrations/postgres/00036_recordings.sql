-- +goose Up

-- The recordings of terminals. kept is the number of bytes in the blob store, and
-- node is the daemon that records, or that still has to store the rest.
CREATE TABLE recordings (
	tenant         TEXT NOT NULL REFERENCES tenants (id),
	id             TEXT NOT NULL,
	created        BIGINT NOT NULL,
	sandbox        TEXT NOT NULL,
	name           TEXT NOT NULL,
	session        TEXT NOT NULL,
	state          TEXT NOT NULL,
	node           TEXT NOT NULL,
	kept           BIGINT NOT NULL,
	recording_json TEXT NOT NULL,
	PRIMARY KEY (tenant, id)
);
CREATE INDEX recordings_by_age ON recordings (tenant, created, id);
CREATE INDEX recordings_by_node ON recordings (node, state);
