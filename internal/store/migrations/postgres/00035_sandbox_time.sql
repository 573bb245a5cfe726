-- +goose Up

-- metered: since when the time of a sandbox is counted; 0 while none is, and -1 if
-- its session counts it. A sandbox of an earlier version has run at least since its
-- last change.
ALTER TABLE sandboxes ADD COLUMN metered BIGINT NOT NULL DEFAULT 0;
UPDATE sandboxes SET metered = updated WHERE state IN ('running', 'pausing', 'paused', 'resuming', 'exited') AND pause <> 'disk';
UPDATE sandboxes SET metered = -1 WHERE id IN (SELECT sandbox FROM lease_epochs);

-- How long sandboxes without a session ran, in nanoseconds, within whole hours: the
-- sum over the sandboxes with the same labels that ran from since to until. A run
-- of several hours has up to three rows: the time in its first hour, the full hours
-- after it, and the time in its last hour.
CREATE TABLE sandbox_time (
	tenant      TEXT NOT NULL REFERENCES tenants (id),
	provider    TEXT NOT NULL,
	labels_json TEXT NOT NULL,
	since       BIGINT NOT NULL,
	until       BIGINT NOT NULL,
	time        BIGINT NOT NULL,
	PRIMARY KEY (tenant, until, since, provider, labels_json)
);
