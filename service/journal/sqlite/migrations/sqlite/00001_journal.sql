-- +goose Up
CREATE TABLE journal_events (
    position INTEGER PRIMARY KEY CHECK (position > 0),
    stream   TEXT    NOT NULL,
    version  INTEGER NOT NULL CHECK (version > 0),
    kind     TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    UNIQUE (stream, version)
) STRICT;

-- The authoriser refuses these already; the triggers hold against other tools too.
-- +goose StatementBegin
CREATE TRIGGER journal_events_unchanged BEFORE UPDATE ON journal_events
BEGIN SELECT RAISE(ABORT, 'events never change'); END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER journal_events_kept BEFORE DELETE ON journal_events
BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END;
-- +goose StatementEnd

-- One row, rewritten by every commit: the clock's high-water mark, the number of
-- the commit (to learn whether an unclear one holds), and the last position.
CREATE TABLE journal_state (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    clock  INTEGER NOT NULL,
    commits INTEGER NOT NULL,
    head   INTEGER NOT NULL
) STRICT;
INSERT INTO journal_state (one, clock, commits, head) VALUES (1, 0, 0, 0);

CREATE TABLE journal_boots (
    id      TEXT    PRIMARY KEY,
    pid     INTEGER NOT NULL,
    started INTEGER NOT NULL,
    ended   INTEGER,
    how     TEXT CHECK (how IN ('closed', 'lost')),
    CHECK ((ended IS NULL) = (how IS NULL))
) STRICT, WITHOUT ROWID;
