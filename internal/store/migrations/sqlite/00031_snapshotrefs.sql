-- Snapshots are kept by their providers. The reference is what the provider finds
-- one by, as a JSON object; it is empty for snapshots of earlier versions, which
-- are found by their IDs. The binding is the account, address or machine that a
-- snapshot belongs to.

-- +goose Up
ALTER TABLE snapshots ADD COLUMN ref_json TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN binding TEXT NOT NULL DEFAULT '';
