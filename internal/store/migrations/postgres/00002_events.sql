-- +goose Up
-- The body is the canonical form of the event, and the hash covers it and the
-- hash before it; the columns beside it exist to filter by. See package
-- eventlog.
CREATE TABLE events (
	tenant  TEXT NOT NULL REFERENCES tenants (id),
	seq     BIGINT NOT NULL,
	time    BIGINT NOT NULL,
	type    TEXT NOT NULL,
	op      TEXT NOT NULL,
	sandbox TEXT NOT NULL,
	code    TEXT NOT NULL,
	body    TEXT NOT NULL,
	hash    BYTEA NOT NULL,
	PRIMARY KEY (tenant, seq)
);
CREATE INDEX events_sandbox ON events (tenant, sandbox, seq) WHERE sandbox <> '';
CREATE INDEX events_time ON events (tenant, time, seq);

-- The last event of each tenant: whoever appends locks this row.
CREATE TABLE event_heads (
	tenant TEXT PRIMARY KEY REFERENCES tenants (id),
	seq    BIGINT NOT NULL,
	hash   BYTEA NOT NULL
);

-- What was announced in the log and has no outcome there yet.
CREATE TABLE intents (
	tenant  TEXT NOT NULL,
	seq     BIGINT NOT NULL,
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
CREATE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'events are append-only';
END;
$$;
-- +goose StatementEnd
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events
	FOR EACH STATEMENT EXECUTE FUNCTION events_append_only();
