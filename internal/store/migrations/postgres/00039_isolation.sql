-- +goose Up

-- What isolates a sandbox. It is not known of those of earlier versions, except
-- where their provider has only one kind.
ALTER TABLE sandboxes ADD COLUMN isolation TEXT NOT NULL DEFAULT '';
UPDATE sandboxes SET isolation = 'kernel' WHERE provider = 'gvisor';
UPDATE sandboxes SET isolation = 'none' WHERE provider IN ('host', 'docker');
