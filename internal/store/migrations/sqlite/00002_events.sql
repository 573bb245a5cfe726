-- +goose Up
-- The body is the canonical form of the event, and the hash covers it and the
-- hash before it; the columns beside it exist to filter by. See package
-- eventlog.
CREATE TABLE events (
	tenant  TEXT NOT NULL REFERENCES tenants (id),
	seq     INTEGER NOT NULL,
	time    INTEGER NOT NULL,
	type    TEXT NOT NULL,
	op      TEXT NOT NULL,
	sandbox TEXT NOT NULL,
	code    TEXT NOT NULL,
	body    TEXT NOT NULL,
	hash    BLOB NOT NULL,
	PRIMARY KEY (tenant, seq)
) WITHOUT ROWID;
CREATE INDEX events_sandbox ON events (tenant, sandbox, seq) WHERE sandbox <> '';
CREATE INDEX events_time ON events (tenant, time, seq);

-- The last event of each tenant: whoever appends locks this row.
CREATE TABLE event_heads (
	tenant TEXT PRIMARY KEY REFERENCES tenants (id),
	seq    INTEGER NOT NULL,
	hash   BLOB NOT NULL
);

-- What was announced in the log and has no outcome there yet.
CREATE TABLE intents (
	tenant  TEXT NOT NULL,
	seq     INTEGER NOT NULL,
	node    TEXT NOT NULL,
	op      TEXT NOT NULL,
	sandbox TEXT NOT NULL,
	PRIMARY KEY (tenant, seq),
	FOREIGN KEY (tenant, seq) REFERENCES events (tenant, seq)
);
CREATE INDEX intents_node ON intents (node, tenant, seq);

-- No code of Atoll changes or removes an event; these see to it that none
-- ever does by mistake.
-- +goose StatementBegin
CREATE TRIGGER events_append_only_update BEFORE UPDATE ON events
BEGIN
	SELECT RAISE(ABORT, 'events are append-only');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER events_append_only_delete BEFORE DELETE ON events
BEGIN
	SELECT RAISE(ABORT, 'events are append-only');
END;
-- +goose StatementEnd
