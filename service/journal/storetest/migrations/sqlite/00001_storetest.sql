-- +goose Up
CREATE TABLE storetest_balance (
    name   TEXT   PRIMARY KEY,
    amount BIGINT NOT NULL CHECK (amount >= 0)
);

CREATE TABLE storetest_debt (
    name TEXT NOT NULL REFERENCES storetest_balance (name) DEFERRABLE INITIALLY DEFERRED
);

-- Writing here rolls the whole transaction back from inside SQLite.
CREATE TABLE storetest_trap (x BIGINT);
-- +goose StatementBegin
CREATE TRIGGER storetest_trap_closes BEFORE INSERT ON storetest_trap
BEGIN SELECT RAISE(ROLLBACK, 'trapped'); END;
-- +goose StatementEnd
