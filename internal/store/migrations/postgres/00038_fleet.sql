-- +goose Up

-- The node daemons on which this one makes sandboxes. binding is the tenant there,
-- empty before the first answer. state is active, cordoned, draining or removed.
-- lost says that a removed node was given up, and cleared when its old sandboxes
-- were ended all the same.
CREATE TABLE fleet (
	name    TEXT NOT NULL PRIMARY KEY,
	url     TEXT NOT NULL,
	binding TEXT NOT NULL,
	state   TEXT NOT NULL,
	lost    BIGINT NOT NULL,
	added   BIGINT NOT NULL,
	removed BIGINT NOT NULL,
	cleared BIGINT NOT NULL
);
CREATE INDEX sandboxes_provider ON sandboxes (provider, id) WHERE state <> 'gone';
