-- +goose Up
-- One row a batch: the hashes that its events added to the tree, in the order of
-- their stored indexes (tlog.StoredHashIndex), and the signed checkpoint over the
-- tree as it was then.
CREATE TABLE notary_batch (
    size       BIGINT NOT NULL PRIMARY KEY CHECK (size > 0),
    first_hash BIGINT NOT NULL UNIQUE CHECK (first_hash >= 0),
    hashes     BLOB   NOT NULL,
    checkpoint TEXT   NOT NULL
);
