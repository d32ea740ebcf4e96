-- +goose Up

-- The rule that let a call run, parked or refused it, and the wake it was ordered under.
ALTER TABLE call ADD COLUMN rule TEXT NOT NULL DEFAULT '';
ALTER TABLE call ADD COLUMN wake TEXT;

-- An identical order under one key is answered with the stored outcome (rule R5).
CREATE INDEX call_wake ON call (wake, body_hash, id) WHERE wake IS NOT NULL;

-- What is stopped: a thread's id, or * for all agents (rule R8).
CREATE TABLE hold (
    scope   TEXT PRIMARY KEY,
    by_id   TEXT NOT NULL,
    by_role TEXT NOT NULL,
    set_at  BIGINT NOT NULL
);
