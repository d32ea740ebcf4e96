-- +goose Up
-- Bytes may belong to a run, and are then its delegation's owner's.
ALTER TABLE artifact ADD COLUMN run TEXT;
ALTER TABLE artifact ADD COLUMN delegation TEXT;
ALTER TABLE artifact ADD COLUMN producer TEXT;
ALTER TABLE artifact ADD COLUMN upload TEXT;

CREATE UNIQUE INDEX artifact_run ON artifact (run, name, digest) WHERE run IS NOT NULL;
CREATE INDEX artifact_delegation ON artifact (delegation, digest) WHERE delegation IS NOT NULL;
CREATE UNIQUE INDEX artifact_upload ON artifact (upload) WHERE upload IS NOT NULL;
CREATE INDEX artifact_room ON artifact (owner_id, digest, bytes);

-- Bytes that are on their way; the partial file has the name of the id. What is not
-- recorded as received may lie in it and does not count.
CREATE TABLE upload (
    id         TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,
    bytes      BIGINT NOT NULL CHECK (bytes > 0),
    received   BIGINT NOT NULL CHECK (received >= 0 AND received <= bytes),
    name       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    run        TEXT NOT NULL,
    delegation TEXT NOT NULL,
    sender     TEXT NOT NULL,
    owner_id   TEXT NOT NULL,
    owner_role TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    UNIQUE (run, name, digest)
);

CREATE INDEX upload_sender ON upload (sender);
CREATE INDEX upload_owner ON upload (owner_id, digest, bytes);
CREATE INDEX upload_digest ON upload (digest);
CREATE INDEX upload_expires ON upload (expires_at);

-- What somebody has signed of bytes. Only what was proved is written here.
CREATE TABLE attestation (
    id         TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,
    name       TEXT NOT NULL,
    run        TEXT NOT NULL,
    delegation TEXT NOT NULL,
    producer   TEXT NOT NULL,
    fence      BIGINT NOT NULL,
    key_id     TEXT NOT NULL,
    statement  TEXT NOT NULL, -- digest of the signed payload
    envelope   TEXT NOT NULL,
    at         BIGINT NOT NULL,
    UNIQUE (run, digest, statement)
);

CREATE INDEX attestation_digest ON attestation (digest, id);
