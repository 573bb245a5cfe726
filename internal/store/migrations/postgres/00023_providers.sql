-- Sandboxes of several providers. The binding is the account, address or machine
-- that a sandbox belongs to; the limits are those that its provider does not
-- enforce, as a JSON object.

-- +goose Up
ALTER TABLE sandboxes ADD COLUMN binding TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN limits_json TEXT NOT NULL DEFAULT '';
