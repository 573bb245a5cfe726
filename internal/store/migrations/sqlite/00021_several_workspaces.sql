-- +goose Up
-- A sandbox can have several workspaces.
CREATE TABLE attachments_new (
	sandbox   TEXT NOT NULL, -- its record may be forgotten earlier
	workspace TEXT NOT NULL REFERENCES workspaces (id),
	node      TEXT NOT NULL,
	mode      TEXT NOT NULL,
	created   INTEGER NOT NULL,
	PRIMARY KEY (sandbox, workspace)
);
INSERT INTO attachments_new (sandbox, workspace, node, mode, created) SELECT sandbox, workspace, node, mode, created FROM attachments;
DROP TABLE attachments;
ALTER TABLE attachments_new RENAME TO attachments;
CREATE INDEX attachments_workspace ON attachments (workspace);
CREATE INDEX attachments_node ON attachments (node);
UPDATE sandboxes SET spec_json = json_remove(json_set(spec_json, '$.workspaces', json_array(json_extract(spec_json, '$.workspace'))), '$.workspace')
	WHERE json_extract(spec_json, '$.workspace') IS NOT NULL;
