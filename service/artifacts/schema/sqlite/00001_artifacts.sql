-- +goose Up
-- One row for each name under which bytes were published; the bytes are in the folder.
CREATE TABLE artifact (
    id         TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,
    name       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    bytes      BIGINT NOT NULL CHECK (bytes >= 0),
    call       TEXT,
    owner_id   TEXT NOT NULL,
    owner_role TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (call, name)
);

CREATE INDEX artifact_digest ON artifact (digest, id);
CREATE INDEX artifact_owner ON artifact (owner_id, id);
