-- +goose Up
-- A sandbox can have several workspaces.
ALTER TABLE attachments DROP CONSTRAINT attachments_pkey;
ALTER TABLE attachments ADD PRIMARY KEY (sandbox, workspace);
UPDATE sandboxes SET spec_json = (jsonb_set(spec_json::jsonb, '{workspaces}', jsonb_build_array(spec_json::jsonb -> 'workspace')) - 'workspace')::text
	WHERE spec_json::jsonb -> 'workspace' IS NOT NULL;
