-- +goose Up
CREATE TABLE call (
    id          TEXT PRIMARY KEY,
    by_id       TEXT NOT NULL,
    by_role     TEXT NOT NULL,
    op          TEXT NOT NULL,
    provider    TEXT NOT NULL,
    effect      TEXT NOT NULL CHECK (effect IN ('none', 'journal', 'outside')),
    definition  TEXT NOT NULL,
    params      TEXT NOT NULL,
    body_hash   TEXT NOT NULL,
    idem_key    TEXT,
    source      TEXT NOT NULL,
    origin      TEXT NOT NULL,
    evidence    TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('received', 'refused', 'running', 'accepted', 'succeeded', 'failed', 'cancelled', 'outcome_unknown')),
    owner       TEXT NOT NULL,
    outcome     TEXT,
    received_at BIGINT NOT NULL,
    started_at  BIGINT,
    settled_at  BIGINT,
    CHECK ((outcome IS NULL) = (state IN ('received', 'running', 'accepted'))),
    CHECK ((settled_at IS NULL) = (outcome IS NULL))
);

CREATE UNIQUE INDEX call_key ON call (by_id, idem_key) WHERE idem_key IS NOT NULL;
CREATE INDEX call_open ON call (id) WHERE outcome IS NULL;
CREATE INDEX call_by ON call (by_id, id);
