-- +goose Up
-- public: other tenants may use the template. withheld: why they never may; it
-- is unknown whether the image of an earlier version's template needs a password.
ALTER TABLE templates ADD COLUMN public INTEGER NOT NULL DEFAULT 0;
ALTER TABLE templates ADD COLUMN withheld TEXT NOT NULL DEFAULT 'unknown';
