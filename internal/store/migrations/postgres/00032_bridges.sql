-- A sandbox whose provider cannot mount a workspace has a copy of it: 0 is a mount,
-- 1 a copy that is being made, and 2 one that is complete.

-- +goose Up
ALTER TABLE attachments ADD COLUMN bridge INTEGER NOT NULL DEFAULT 0;
