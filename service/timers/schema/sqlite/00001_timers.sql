-- +goose Up
CREATE TABLE timer (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    schedule    TEXT NOT NULL,
    zone        TEXT NOT NULL,
    agent       TEXT NOT NULL,
    prompt      TEXT NOT NULL,
    trusted     BIGINT NOT NULL,    -- 1: the prompt is the words of someone who is trusted
    jitter_ms   BIGINT NOT NULL,
    until_at    BIGINT,
    max_runs    BIGINT NOT NULL,    -- 0 is no bound
    overlap     TEXT NOT NULL CHECK (overlap IN ('skip', 'queue', 'allow')),
    missed      TEXT NOT NULL CHECK (missed IN ('skip', 'once', 'all')),
    ops         TEXT NOT NULL,      -- JSON: names of ops
    deadline_ms BIGINT NOT NULL,
    by_id       TEXT NOT NULL,
    by_role     TEXT NOT NULL,
    source      TEXT NOT NULL,      -- of the call that made it
    state       TEXT NOT NULL CHECK (state IN ('active', 'paused', 'ended')),
    reason      TEXT NOT NULL,      -- why it ended
    due_at      BIGINT,             -- the next occurrence; none when only the queue is left
    next_at     BIGINT,             -- and its jitter on top
    occurrences BIGINT NOT NULL,    -- rows in occurrence
    runs        BIGINT NOT NULL,    -- wakes raised
    queued      BIGINT NOT NULL,
    last_at     BIGINT,
    last_wake   TEXT,
    created_at  BIGINT NOT NULL,
    ended_at    BIGINT
);
CREATE INDEX timer_next ON timer (next_at, id) WHERE state = 'active';
CREATE INDEX timer_queued ON timer (id) WHERE queued > 0;
CREATE INDEX timer_live ON timer (agent) WHERE state <> 'ended';
CREATE INDEX timer_agent ON timer (agent, id);
CREATE INDEX timer_by ON timer (by_id, id);

CREATE TABLE occurrence (
    timer    TEXT NOT NULL REFERENCES timer (id),
    n        BIGINT NOT NULL,       -- from 1, without gaps
    due_at   BIGINT NOT NULL,
    last_due BIGINT NOT NULL,       -- of a row that stands for several
    times    BIGINT NOT NULL,       -- how many it stands for
    next_at  BIGINT NOT NULL,       -- due_at and its jitter
    asked_by TEXT NOT NULL,         -- who had it run now, '' for the schedule
    outcome  TEXT NOT NULL CHECK (outcome IN ('woken', 'missed', 'skipped', 'queued', 'refused')),
    at       BIGINT NOT NULL,       -- when that was decided
    wake     TEXT,
    fault    TEXT,                  -- JSON
    PRIMARY KEY (timer, n)
);
CREATE INDEX occurrence_queued ON occurrence (timer, n) WHERE outcome = 'queued';
