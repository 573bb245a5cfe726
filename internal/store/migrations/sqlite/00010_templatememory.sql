-- +goose Up
-- What runs in sandboxes of a template, when it is ready, and the snapshot that
-- was made then. Empty: nothing.
ALTER TABLE templates ADD COLUMN start TEXT NOT NULL DEFAULT '';
ALTER TABLE templates ADD COLUMN ready TEXT NOT NULL DEFAULT '';
ALTER TABLE templates ADD COLUMN snapshot TEXT NOT NULL DEFAULT '';
