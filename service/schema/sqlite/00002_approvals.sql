-- +goose Up

-- A call may be parked. SQLite changes no CHECK, so the table is made anew.
CREATE TABLE call_2 (
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
    state       TEXT NOT NULL CHECK (state IN ('received', 'parked', 'refused', 'running', 'accepted', 'succeeded', 'failed', 'cancelled', 'outcome_unknown')),
    owner       TEXT NOT NULL,
    outcome     TEXT,
    received_at BIGINT NOT NULL,
    started_at  BIGINT,
    settled_at  BIGINT,
    CHECK ((outcome IS NULL) = (state IN ('received', 'parked', 'running', 'accepted'))),
    CHECK ((settled_at IS NULL) = (outcome IS NULL))
);

INSERT INTO call_2 (id, by_id, by_role, op, provider, effect, definition, params, body_hash, idem_key, source, origin, evidence,
    state, owner, outcome, received_at, started_at, settled_at)
SELECT id, by_id, by_role, op, provider, effect, definition, params, body_hash, idem_key, source, origin, evidence,
    state, owner, outcome, received_at, started_at, settled_at FROM call;

DROP TABLE call;
ALTER TABLE call_2 RENAME TO call;

CREATE UNIQUE INDEX call_key ON call (by_id, idem_key) WHERE idem_key IS NOT NULL;
CREATE INDEX call_open ON call (id) WHERE outcome IS NULL;
CREATE INDEX call_by ON call (by_id, id);

-- One row for each call that was parked. What it binds never changes.
CREATE TABLE approval (
    id             TEXT PRIMARY KEY,
    call           TEXT NOT NULL UNIQUE REFERENCES call (id),
    by_id          TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'expired', 'void')),
    summary        TEXT NOT NULL,
    side_effecting BIGINT NOT NULL,
    bound          TEXT NOT NULL,
    hash           TEXT NOT NULL,
    policy         TEXT NOT NULL,
    requested_at   BIGINT NOT NULL,
    expires_at     BIGINT NOT NULL,
    decided_at     BIGINT,
    decided_by     TEXT,
    reason         TEXT,
    changed        TEXT,
    CHECK ((state = 'pending') = (decided_at IS NULL))
);

CREATE INDEX approval_pending ON approval (expires_at) WHERE state = 'pending';
CREATE INDEX approval_by ON approval (by_id, id);
