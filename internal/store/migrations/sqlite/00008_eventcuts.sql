-- +goose Up
-- How far a daemon has sent the log of a tenant to somebody else.
CREATE TABLE event_cursors (
	node   TEXT NOT NULL,
	tenant TEXT NOT NULL REFERENCES tenants (id),
	seq    INTEGER NOT NULL,
	PRIMARY KEY (node, tenant)
);

-- Up to where the log of a tenant was pruned: number and hash of the last
-- record that is gone, sealed by who did it.
CREATE TABLE event_cuts (
	tenant TEXT PRIMARY KEY REFERENCES tenants (id),
	seq    INTEGER NOT NULL,
	hash   BLOB NOT NULL,
	time   INTEGER NOT NULL,
	seal   BLOB NOT NULL
);

-- Only what a cut answers for is ever removed.
DROP TRIGGER events_append_only_delete;
-- +goose StatementBegin
CREATE TRIGGER events_append_only_delete BEFORE DELETE ON events
WHEN NOT EXISTS (SELECT 1 FROM event_cuts WHERE tenant = OLD.tenant AND seq >= OLD.seq)
BEGIN
	SELECT RAISE(ABORT, 'events are append-only');
END;
-- +goose StatementEnd
