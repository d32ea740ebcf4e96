-- +goose Up

-- A thread of a chat adaptor has an address that only the adaptor reads. It has no root
-- message yet until the first post has made one.
ALTER TABLE thread ADD COLUMN adaptor TEXT NOT NULL DEFAULT 'rooms';
ALTER TABLE thread ADD COLUMN address TEXT NOT NULL DEFAULT '';
-- 1: the address names its root; 0: its first post will make one; 2: it has a root, and
-- another thread is the one that is found there.
ALTER TABLE thread ADD COLUMN rooted BIGINT NOT NULL DEFAULT 1;
CREATE UNIQUE INDEX thread_address ON thread (adaptor, address) WHERE adaptor <> 'rooms' AND rooted = 1;
CREATE INDEX thread_place ON thread (adaptor, address) WHERE adaptor <> 'rooms';

-- SQLite changes no CHECK, so tables with a new kind are made anew.
CREATE TABLE post_2 (
    thread      TEXT NOT NULL REFERENCES thread (id),
    seq         BIGINT NOT NULL,
    id          TEXT NOT NULL UNIQUE,
    kind        TEXT NOT NULL CHECK (kind IN ('reply', 'result', 'note', 'message', 'wake', 'heard')),
    author_id   TEXT,
    author_role TEXT,
    author_name TEXT,               -- of one who is no identity: the platform's own id
    body        TEXT NOT NULL,
    posted_at   BIGINT NOT NULL,
    call        TEXT,
    message     TEXT,
    wake        TEXT,
    platform_id TEXT,               -- the message's id on the adaptor's platform
    PRIMARY KEY (thread, seq)
);
INSERT INTO post_2 (thread, seq, id, kind, author_id, author_role, body, posted_at, call, message)
SELECT thread, seq, id, kind, author_id, author_role, body, posted_at, call, message FROM post;
DROP TABLE post;
ALTER TABLE post_2 RENAME TO post;

CREATE TABLE outbox_2 (
    id           TEXT PRIMARY KEY,
    adaptor      TEXT NOT NULL,
    address      TEXT NOT NULL,     -- the thread's id; its row has the platform's address
    seq          BIGINT NOT NULL,   -- its place in the thread, in which order it is delivered
    kind         TEXT NOT NULL CHECK (kind IN ('result', 'note', 'message', 'wake')),
    about        TEXT NOT NULL,
    part         BIGINT NOT NULL DEFAULT 0,
    body         TEXT NOT NULL,
    file         TEXT NOT NULL DEFAULT '', -- an attachment
    call         TEXT,
    wake         TEXT,
    mention      TEXT NOT NULL DEFAULT '', -- whom it addresses, by the platform's id
    mark         TEXT NOT NULL DEFAULT '', -- our own footer, r-…, by which it is found again; the post's id
    state        TEXT NOT NULL CHECK (state IN ('queued', 'sending', 'delivered', 'set_aside')),
    attempts     BIGINT NOT NULL,
    next_at      BIGINT NOT NULL DEFAULT 0, -- of the next attempt, by the wall clock
    owner        TEXT NOT NULL DEFAULT '', -- the boot that sends it
    queued_at    BIGINT NOT NULL,
    delivered_at BIGINT,
    platform_id  TEXT,
    fault        TEXT,              -- why it is set aside, or why the last attempt failed
    reason       TEXT NOT NULL DEFAULT '', -- set aside: one word
    UNIQUE (kind, about, part)
);
INSERT INTO outbox_2 (id, adaptor, address, seq, kind, about, body, call, state, attempts, queued_at, delivered_at, fault)
SELECT id, adaptor, address, row_number() OVER (PARTITION BY address ORDER BY id), kind, about, body,
    CASE kind WHEN 'result' THEN about END, state, attempts, queued_at, delivered_at, fault FROM outbox;
DROP TABLE outbox;
ALTER TABLE outbox_2 RENAME TO outbox;
CREATE INDEX outbox_thread ON outbox (address, seq);
CREATE INDEX outbox_queued ON outbox (adaptor, queued_at, seq) WHERE state = 'queued';
CREATE INDEX outbox_open ON outbox (adaptor, address, seq) WHERE state IN ('queued', 'sending');
CREATE INDEX outbox_shown ON outbox (id) WHERE state <> 'delivered';

-- One row for each message of a platform: the whole of deduplication there. What was
-- handed in as a reply is in the table reply.
CREATE TABLE inbound (
    adaptor     TEXT NOT NULL,
    workspace   TEXT NOT NULL,
    room        TEXT NOT NULL,
    message     TEXT NOT NULL,
    text_hash   TEXT NOT NULL,
    thread      TEXT,
    post        TEXT,
    answer      TEXT NOT NULL,      -- what Receive returned, as JSON
    received_at BIGINT NOT NULL,
    PRIMARY KEY (adaptor, workspace, room, message)
);

CREATE TABLE cursor (
    adaptor TEXT PRIMARY KEY,
    value   TEXT NOT NULL,
    set_at  BIGINT NOT NULL
);

-- An errand for an agent.
CREATE TABLE wake (
    id          TEXT PRIMARY KEY,
    agent       TEXT NOT NULL,
    thread      TEXT NOT NULL REFERENCES thread (id),
    key         TEXT NOT NULL,
    cause       TEXT NOT NULL CHECK (cause IN ('timer', 'message', 'delegation')),
    source      TEXT NOT NULL,
    by_id       TEXT,
    by_role     TEXT,
    root        TEXT NOT NULL,
    hops        BIGINT NOT NULL,
    declared    TEXT NOT NULL,      -- JSON: names of ops
    errand      TEXT NOT NULL,      -- JSON: the Errand
    state       TEXT NOT NULL CHECK (state IN ('held', 'open', 'ended')),
    verdict     TEXT CHECK (verdict IN ('done', 'failed', 'blocked', 'waiting', 'unanswered')),
    summary     TEXT,
    refs        TEXT,               -- JSON: strings
    post        TEXT,               -- of the envelope
    span_start  BIGINT NOT NULL DEFAULT 0, -- the untrusted block in the envelope, bytes
    span_end    BIGINT NOT NULL DEFAULT 0,
    raised_at   BIGINT NOT NULL,
    deadline_at BIGINT NOT NULL,
    ended_at    BIGINT
);
CREATE INDEX wake_thread ON wake (thread, agent, id);
CREATE INDEX wake_agent ON wake (agent, id);
CREATE INDEX wake_root ON wake (root);
CREATE INDEX wake_open ON wake (agent, thread, id) WHERE state = 'open';
CREATE INDEX wake_live ON wake (thread) WHERE state <> 'ended';
CREATE INDEX wake_agent_live ON wake (agent, id) WHERE state <> 'ended';
CREATE INDEX wake_held ON wake (id) WHERE state = 'held';
CREATE INDEX wake_due ON wake (deadline_at) WHERE state = 'open';
CREATE INDEX wake_source ON wake (source);

-- The canonical forms of the orders that stood in untrusted material of a thread (R5).
CREATE TABLE shown (
    thread TEXT NOT NULL,
    digest TEXT NOT NULL,
    author TEXT NOT NULL,           -- an identity, or '' for anybody else's words
    PRIMARY KEY (thread, digest, author)
);

-- What has been shown in a thread, by whom, and the ends of it, which the next message may
-- go on: of all that was said (author *) and of each author's words.
CREATE TABLE material (
    thread   TEXT NOT NULL,
    author   TEXT NOT NULL,
    messages BIGINT NOT NULL,
    orders   BIGINT NOT NULL,
    overflow BIGINT NOT NULL,       -- 1: more than could be kept, so nothing is certain
    PRIMARY KEY (thread, author)
);
CREATE TABLE material_tail (
    thread TEXT NOT NULL,
    author TEXT NOT NULL,
    writer TEXT NOT NULL,           -- whose words all of it is, + if several wrote it
    tail   TEXT NOT NULL,
    PRIMARY KEY (thread, author)
);

-- What a person has written to decide about an approval, until it is carried out.
CREATE TABLE decision (
    id       TEXT PRIMARY KEY,
    thread   TEXT NOT NULL,
    by_id    TEXT NOT NULL,
    by_role  TEXT NOT NULL,
    approve  BIGINT NOT NULL,
    code     TEXT NOT NULL,
    reason   TEXT NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('new', 'done', 'refused')), -- refused: its code can be used again
    at       BIGINT NOT NULL
);
CREATE INDEX decision_new ON decision (id) WHERE state = 'new';
CREATE INDEX decision_code ON decision (thread, code);

-- The short code of an approval in its thread.
CREATE TABLE approval_code (
    thread   TEXT NOT NULL,
    code     TEXT NOT NULL,
    approval TEXT NOT NULL UNIQUE,
    PRIMARY KEY (thread, code)
);
