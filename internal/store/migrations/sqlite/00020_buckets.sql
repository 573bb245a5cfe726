-- +goose Up
-- The bucket that a workspace is, by the name that the daemon has for it; empty:
-- it is none. A bucket is one workspace at most, so that nobody gets it twice.
ALTER TABLE workspaces ADD COLUMN bucket TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX workspaces_bucket ON workspaces (tenant, bucket) WHERE bucket <> '';
