-- +goose Up
-- How far a daemon has sent the log of a tenant to somebody else.
CREATE TABLE event_cursors (
	node   TEXT NOT NULL,
	tenant TEXT NOT NULL REFERENCES tenants (id),
	seq    BIGINT NOT NULL,
	PRIMARY KEY (node, tenant)
);

-- Up to where the log of a tenant was pruned: number and hash of the last
-- record that is gone, sealed by who did it.
CREATE TABLE event_cuts (
	tenant TEXT PRIMARY KEY REFERENCES tenants (id),
	seq    BIGINT NOT NULL,
	hash   BYTEA NOT NULL,
	time   BIGINT NOT NULL,
	seal   BYTEA NOT NULL
);

-- Only what a cut answers for is ever removed.
DROP TRIGGER events_append_only ON events;
CREATE TRIGGER events_append_only BEFORE UPDATE OR TRUNCATE ON events
	FOR EACH STATEMENT EXECUTE FUNCTION events_append_only();
-- +goose StatementBegin
CREATE FUNCTION events_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT 1 FROM event_cuts WHERE tenant = OLD.tenant AND seq >= OLD.seq) THEN
		RAISE EXCEPTION 'events are append-only';
	END IF;
	RETURN OLD;
END;
$$;
-- +goose StatementEnd
CREATE TRIGGER events_append_only_delete BEFORE DELETE ON events
	FOR EACH ROW EXECUTE FUNCTION events_removed();
