-- +goose Up
-- What clients of E2B give secrets, and by what they know the build of a
-- template.
ALTER TABLE secrets ADD COLUMN labels_json TEXT NOT NULL DEFAULT '{}';
ALTER TABLE templates ADD COLUMN build TEXT NOT NULL DEFAULT '';
-- What sandboxes get that are made of it and ask for nothing else; 0: nothing
-- of its own.
ALTER TABLE templates ADD COLUMN cpus DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE templates ADD COLUMN memory BIGINT NOT NULL DEFAULT 0;
