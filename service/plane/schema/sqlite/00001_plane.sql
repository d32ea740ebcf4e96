-- +goose Up
-- A state is compared with each name by itself: for a list of more than two, in a CHECK or in
-- the WHERE of an index, SQLite builds a table anew whenever it writes a row.

-- One row: the switch and the fence's term.
CREATE TABLE plane (
    id         BIGINT PRIMARY KEY CHECK (id = 1),
    state      TEXT NOT NULL CHECK (state = 'off' OR state = 'on' OR state = 'drain'),
    term       BIGINT NOT NULL,     -- of fences: term << 32 | counter
    hold_until BIGINT NOT NULL,     -- no lease expires before
    grants_at  BIGINT NOT NULL DEFAULT 0, -- nothing is granted before
    boot       TEXT NOT NULL,       -- of the store, which had the last start
    changed_at BIGINT NOT NULL
);
INSERT INTO plane (id, state, term, hold_until, boot, changed_at) VALUES (1, 'off', 1, 0, '', 0);

-- Who may take leases. An identity of the same id has the role.
CREATE TABLE principal (
    id              TEXT PRIMARY KEY,
    role            TEXT NOT NULL CHECK (role IN ('worker', 'verifier')),
    key_id          TEXT NOT NULL UNIQUE,
    public_key      BLOB NOT NULL UNIQUE,
    implementations TEXT NOT NULL,   -- JSON: names
    capabilities    TEXT NOT NULL,   -- JSON: names
    boot            TEXT NOT NULL,   -- the current one, '' before the first
    boot_at         BIGINT,
    version         TEXT NOT NULL,
    seen_at         BIGINT,
    skew_ms         BIGINT NOT NULL DEFAULT 0, -- the worker's clock less the store's, as last seen
    draining        BIGINT NOT NULL DEFAULT 0,
    enrolled_at     BIGINT NOT NULL,
    revoked_at      BIGINT,
    nonce           TEXT NOT NULL DEFAULT '', -- of the last poll that was granted
    granted         TEXT NOT NULL DEFAULT ''  -- its answer, by which the same poll is answered again
);

-- One-time tokens, by their SHA-256.
CREATE TABLE invitation (
    hash            TEXT PRIMARY KEY,
    name            TEXT NOT NULL,
    role            TEXT NOT NULL CHECK (role IN ('worker', 'verifier')),
    implementations TEXT NOT NULL,
    capabilities    TEXT NOT NULL,
    by_id           TEXT NOT NULL,
    created_at      BIGINT NOT NULL,
    expires_at      BIGINT NOT NULL,
    used_at         BIGINT,
    key_id          TEXT            -- that used it
);

-- How many new runs of an implementation begin in a second, so that what failed at once
-- does not come back at once. Seconds that have passed are deleted.
CREATE TABLE start_slot (
    implementation TEXT NOT NULL,
    second         BIGINT NOT NULL, -- since 1970
    n              BIGINT NOT NULL,
    PRIMARY KEY (implementation, second)
);
CREATE INDEX start_slot_second ON start_slot (second);

CREATE TABLE boot (
    worker     TEXT NOT NULL REFERENCES principal (id),
    boot       TEXT NOT NULL,
    begun_at   BIGINT NOT NULL,
    ended_at   BIGINT,
    PRIMARY KEY (worker, boot)
);
CREATE INDEX boot_begun ON boot (worker, begun_at);

CREATE TABLE instruction (
    digest TEXT PRIMARY KEY,
    body   TEXT NOT NULL            -- canonical JSON
);

CREATE TABLE delegation (
    id             TEXT PRIMARY KEY, -- d-…
    call           TEXT NOT NULL UNIQUE,
    by_id          TEXT NOT NULL,
    by_role        TEXT NOT NULL,
    thread         TEXT NOT NULL,    -- where it was ordered, '' if nowhere
    implementation TEXT NOT NULL,
    revision       TEXT NOT NULL,
    worktree       TEXT NOT NULL,
    instruction    TEXT NOT NULL REFERENCES instruction (digest),
    capabilities   TEXT NOT NULL,    -- JSON
    credentials    TEXT NOT NULL,    -- JSON: references
    outputs        TEXT NOT NULL,    -- JSON: names of files
    verify         TEXT NOT NULL,    -- JSON: argv
    retries        TEXT NOT NULL,    -- JSON: budget by class
    used           TEXT NOT NULL,    -- JSON: of it, used
    state          TEXT NOT NULL CHECK (state = 'OPEN' OR state = 'VERIFYING' OR state = 'COMPLETED' OR state = 'VERIFICATION_FAILED' OR state = 'EVIDENCE_MISSING' OR
                    state = 'VERIFIER_UNAVAILABLE' OR state = 'CANCELLED' OR state = 'EXHAUSTED'),
    attempts       BIGINT NOT NULL,
    last_fence     BIGINT NOT NULL,
    verifications  BIGINT NOT NULL,  -- how many were asked for
    cancel         BIGINT NOT NULL,  -- 1: it is to end as cancelled
    cancel_by      TEXT NOT NULL,
    cancel_reason  TEXT NOT NULL,
    grace_ms       BIGINT NOT NULL,
    answer         TEXT NOT NULL,    -- of a person, for the run that waited
    reason         TEXT NOT NULL,
    deadline       BIGINT NOT NULL,
    version        BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    closed_at      BIGINT,
    CHECK (closed_at IS NOT NULL OR (state <> 'COMPLETED' AND state <> 'VERIFICATION_FAILED' AND state <> 'CANCELLED' AND state <> 'EXHAUSTED'))
);
CREATE INDEX delegation_by ON delegation (by_id, id);
CREATE INDEX delegation_open ON delegation (by_id) WHERE closed_at IS NULL;
CREATE INDEX delegation_thread ON delegation (thread, id);
CREATE INDEX delegation_state ON delegation (state, id);
CREATE INDEX delegation_revision ON delegation (revision);

-- One row for each run, which is one attempt at its delegation.
CREATE TABLE dispatch (
    id              TEXT PRIMARY KEY, -- x-…
    run             TEXT NOT NULL UNIQUE, -- r-…
    delegation      TEXT NOT NULL REFERENCES delegation (id),
    attempt         BIGINT NOT NULL,
    implementation  TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state = 'DISPATCHED' OR state = 'LEASED' OR state = 'RUNNING' OR state = 'CHECKPOINTED' OR state = 'CANCEL_REQUESTED' OR
                    state = 'UNKNOWN' OR state = 'RECOVERING' OR state = 'WAITING_HUMAN' OR state = 'FAILED' OR state = 'SUCCEEDED' OR
                    state = 'CANCELLED' OR state = 'EXHAUSTED'),
    fence           BIGINT,
    worker          TEXT,
    boot            TEXT,
    lease_until     BIGINT,
    not_before      BIGINT NOT NULL,  -- it is not offered before
    deadline        BIGINT NOT NULL,
    cancel_deadline BIGINT,
    cancel_acked_at BIGINT,
    proof           TEXT NOT NULL,    -- how it is known that nothing of it is alive: '', never_started, tombstone, new_boot, ended
    seq             BIGINT NOT NULL,  -- of the last callback
    prev            TEXT NOT NULL,    -- its digest
    progress        BIGINT NOT NULL,
    progress_at     BIGINT,
    pid             BIGINT NOT NULL,
    pid_start       TEXT NOT NULL,
    class           TEXT NOT NULL,    -- of a failure
    reason          TEXT NOT NULL,
    summary         TEXT NOT NULL,    -- the worker's words
    question        TEXT NOT NULL,
    late_result     BIGINT,           -- the evidence that holds a result that came too late
    result          TEXT,             -- JSON
    recover_at      BIGINT,           -- when an UNKNOWN run may be recovered without contact
    due_at          BIGINT,           -- of what the sweep must look at next
    version         BIGINT NOT NULL,
    created_at      BIGINT NOT NULL,
    leased_at       BIGINT,
    started_at      BIGINT,
    ended_at        BIGINT,
    idem_key        TEXT NOT NULL UNIQUE,
    UNIQUE (delegation, attempt),
    UNIQUE (delegation, fence),
    CHECK ((fence IS NOT NULL AND worker IS NOT NULL AND boot IS NOT NULL AND lease_until IS NOT NULL)
        OR (state <> 'LEASED' AND state <> 'RUNNING' AND state <> 'CHECKPOINTED' AND state <> 'CANCEL_REQUESTED')),
    CHECK (state <> 'CANCELLED' OR proof <> '')
);
CREATE UNIQUE INDEX dispatch_live ON dispatch (delegation) WHERE state <> 'FAILED' AND state <> 'SUCCEEDED' AND state <> 'CANCELLED'
    AND state <> 'EXHAUSTED';
CREATE INDEX dispatch_offer ON dispatch (implementation, not_before, id) WHERE state = 'DISPATCHED';
CREATE INDEX dispatch_due ON dispatch (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX dispatch_worker ON dispatch (worker, state);
CREATE INDEX dispatch_state ON dispatch (state, id);

CREATE TABLE verification (
    id          TEXT PRIMARY KEY,    -- v-…
    delegation  TEXT NOT NULL REFERENCES delegation (id),
    run         TEXT NOT NULL REFERENCES dispatch (run),
    n           BIGINT NOT NULL,
    implementation TEXT NOT NULL,
    producer    TEXT NOT NULL,
    verifier    TEXT,
    state       TEXT NOT NULL CHECK (state = 'WAITING' OR state = 'LEASED' OR state = 'PASSED' OR state = 'FAILED' OR state = 'EVIDENCE_MISSING' OR
                    state = 'UNAVAILABLE' OR state = 'DROPPED'),
    fence       BIGINT,
    boot        TEXT,
    lease_until BIGINT,
    seq         BIGINT NOT NULL,
    prev        TEXT NOT NULL,
    not_before  BIGINT NOT NULL,
    deadline    BIGINT NOT NULL,     -- of somebody's verdict
    due_at      BIGINT,
    lapses      BIGINT NOT NULL,     -- leases on it that ended without a verdict
    verdict     TEXT,                -- JSON: the signed body
    reason      TEXT NOT NULL,
    version     BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    ended_at    BIGINT,
    UNIQUE (delegation, n),
    CHECK (verifier IS NULL OR verifier <> producer),
    CHECK (state <> 'LEASED' OR (verifier IS NOT NULL AND fence IS NOT NULL AND boot IS NOT NULL AND lease_until IS NOT NULL)),
    CHECK (state NOT IN ('PASSED', 'FAILED') OR (verifier IS NOT NULL AND verdict IS NOT NULL))
);
CREATE INDEX verification_offer ON verification (not_before, id) WHERE state = 'WAITING';
CREATE INDEX verification_due ON verification (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX verification_leased ON verification (verifier) WHERE state = 'LEASED';
CREATE UNIQUE INDEX verification_live ON verification (delegation) WHERE state IN ('WAITING', 'LEASED');

-- What was accepted of a subject (a run or a verification), and what was answered.
CREATE TABLE callback (
    subject TEXT NOT NULL,
    seq     BIGINT NOT NULL,
    kind    TEXT NOT NULL,
    fence   BIGINT NOT NULL,
    digest  TEXT NOT NULL,
    body    TEXT NOT NULL,
    ack     TEXT NOT NULL,
    at      BIGINT NOT NULL,
    sent_at BIGINT NOT NULL,         -- by the worker's clock, which decides nothing
    PRIMARY KEY (subject, seq)
) WITHOUT ROWID;

-- What was said and has no authority.
CREATE TABLE evidence (
    id         INTEGER PRIMARY KEY,
    delegation TEXT NOT NULL,
    subject    TEXT NOT NULL,
    kind       TEXT NOT NULL,
    reason     TEXT NOT NULL,
    worker     TEXT NOT NULL,
    fence      BIGINT NOT NULL,
    seq        BIGINT NOT NULL,
    digest     TEXT NOT NULL,
    body       TEXT NOT NULL,
    at         BIGINT NOT NULL,
    UNIQUE (subject, fence, seq, digest, reason)
);
CREATE INDEX evidence_delegation ON evidence (delegation, id);

-- What somebody was told to look at, so that a worker that gives cause for it again and
-- again floods no thread.
CREATE TABLE alert (
    run           TEXT NOT NULL,
    fence         BIGINT NOT NULL,
    verifications BIGINT NOT NULL,   -- that had been asked for
    what          TEXT NOT NULL,
    PRIMARY KEY (run, fence, verifications, what)
) WITHOUT ROWID;

CREATE TABLE mutation (
    external   TEXT PRIMARY KEY,     -- the key that the outside knows it by; never used again
    delegation TEXT NOT NULL,
    run        TEXT NOT NULL,
    action     TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state = 'INTENDED' OR state = 'DONE' OR state = 'ABSENT'),
    proof      TEXT NOT NULL,
    intended_at BIGINT NOT NULL,
    proved_at  BIGINT,
    CHECK (state = 'INTENDED' OR proof <> '')
);
CREATE INDEX mutation_open ON mutation (run) WHERE state = 'INTENDED';
CREATE INDEX mutation_delegation ON mutation (delegation);

-- Files that a run has left: checkpointed, or returned with its result.
CREATE TABLE run_file (
    run      TEXT NOT NULL REFERENCES dispatch (run),
    name     TEXT NOT NULL,
    digest   TEXT NOT NULL,
    bytes    BIGINT NOT NULL,
    kind     TEXT NOT NULL,
    at       BIGINT NOT NULL,
    PRIMARY KEY (run, name, digest)
);
CREATE INDEX run_file_digest ON run_file (digest);
