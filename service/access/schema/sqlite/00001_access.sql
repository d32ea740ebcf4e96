-- +goose Up
CREATE TABLE identity (
    id         TEXT PRIMARY KEY,
    role       TEXT NOT NULL CHECK (role IN ('agent', 'operator', 'bridge', 'worker', 'verifier')),
    created_at BIGINT NOT NULL,
    revoked_at BIGINT
);

CREATE TABLE token (
    id         TEXT PRIMARY KEY,
    hash       TEXT NOT NULL UNIQUE,
    identity   TEXT NOT NULL REFERENCES identity (id),
    hint       TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT
);

CREATE TABLE enrolment (
    bridge TEXT NOT NULL REFERENCES identity (id),
    agent  TEXT NOT NULL REFERENCES identity (id),
    PRIMARY KEY (bridge, agent)
);
