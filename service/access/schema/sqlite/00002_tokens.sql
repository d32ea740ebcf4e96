-- +goose Up
-- Each boot of a worker ends the token of the one before, and tokens are kept for good.
CREATE INDEX token_live ON token (identity) WHERE revoked_at IS NULL;
