-- +goose Up
-- Durations of a lifetime are milliseconds.
UPDATE sandboxes SET spec_json = json_remove(json_set(spec_json,
		'$.lifetime.timeoutMs', CAST(COALESCE(json_extract(spec_json, '$.lifetime.timeout'), 0) AS INTEGER) / 1000000,
		'$.lifetime.idleMs', CAST(COALESCE(json_extract(spec_json, '$.lifetime.idle'), 0) AS INTEGER) / 1000000),
	'$.lifetime.timeout', '$.lifetime.idle') WHERE json_extract(spec_json, '$.lifetime') IS NOT NULL;
UPDATE snapshots SET spec_json = json_remove(json_set(spec_json,
		'$.lifetime.timeoutMs', CAST(COALESCE(json_extract(spec_json, '$.lifetime.timeout'), 0) AS INTEGER) / 1000000,
		'$.lifetime.idleMs', CAST(COALESCE(json_extract(spec_json, '$.lifetime.idle'), 0) AS INTEGER) / 1000000),
	'$.lifetime.timeout', '$.lifetime.idle') WHERE json_extract(spec_json, '$.lifetime') IS NOT NULL;
