-- +goose Up
CREATE TABLE room (
    name      TEXT PRIMARY KEY,
    opened_at BIGINT NOT NULL
);

CREATE TABLE thread (
    id        TEXT PRIMARY KEY,
    room      TEXT NOT NULL REFERENCES room (name),
    opened_at BIGINT NOT NULL,
    last_seq  BIGINT NOT NULL,
    last_at   BIGINT NOT NULL
);

CREATE TABLE participant (
    thread   TEXT NOT NULL REFERENCES thread (id),
    identity TEXT NOT NULL,
    PRIMARY KEY (thread, identity)
);

CREATE INDEX participant_threads ON participant (identity, thread);

CREATE TABLE post (
    thread      TEXT NOT NULL REFERENCES thread (id),
    seq         BIGINT NOT NULL,
    id          TEXT NOT NULL UNIQUE,
    kind        TEXT NOT NULL CHECK (kind IN ('reply', 'result', 'note', 'message')),
    author_id   TEXT,
    author_role TEXT,
    body        TEXT NOT NULL,
    posted_at   BIGINT NOT NULL,
    call        TEXT,
    message     TEXT,
    PRIMARY KEY (thread, seq)
);

-- One row for each message that was taken: the whole of deduplication.
CREATE TABLE reply (
    adaptor   TEXT NOT NULL,
    room      TEXT NOT NULL,
    agent     TEXT NOT NULL,
    message   TEXT NOT NULL,
    thread    TEXT NOT NULL REFERENCES thread (id),
    text_hash TEXT NOT NULL,
    ack       TEXT NOT NULL,
    PRIMARY KEY (adaptor, room, agent, message)
);

CREATE TABLE outbox (
    id           TEXT PRIMARY KEY,
    adaptor      TEXT NOT NULL,
    address      TEXT NOT NULL,
    kind         TEXT NOT NULL CHECK (kind IN ('result', 'note')),
    about        TEXT NOT NULL,
    body         TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('queued', 'delivered', 'set_aside')),
    attempts     BIGINT NOT NULL,
    queued_at    BIGINT NOT NULL,
    delivered_at BIGINT,
    fault        TEXT,
    UNIQUE (kind, about)
);

CREATE INDEX outbox_queued ON outbox (id) WHERE state = 'queued';
