-- +goose Up
-- Durations of a lifetime are milliseconds.
UPDATE sandboxes SET spec_json = jsonb_set(spec_json::jsonb, '{lifetime}', (spec_json::jsonb -> 'lifetime') - 'timeout' - 'idle' || jsonb_build_object(
		'timeoutMs', COALESCE((spec_json::jsonb #>> '{lifetime,timeout}')::bigint, 0) / 1000000,
		'idleMs', COALESCE((spec_json::jsonb #>> '{lifetime,idle}')::bigint, 0) / 1000000))::text
	WHERE spec_json::jsonb -> 'lifetime' IS NOT NULL;
UPDATE snapshots SET spec_json = jsonb_set(spec_json::jsonb, '{lifetime}', (spec_json::jsonb -> 'lifetime') - 'timeout' - 'idle' || jsonb_build_object(
		'timeoutMs', COALESCE((spec_json::jsonb #>> '{lifetime,timeout}')::bigint, 0) / 1000000,
		'idleMs', COALESCE((spec_json::jsonb #>> '{lifetime,idle}')::bigint, 0) / 1000000))::text
	WHERE spec_json::jsonb -> 'lifetime' IS NOT NULL;
