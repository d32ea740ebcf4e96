package main

import (
	"context"
	"database/sql"
	"errors"
)

// execSQL runs statements on a journal as somebody would who can write the file. The driver
// is that of the store.
func execSQL(path string, statements ...string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	var errs []error
	for _, s := range append([]string{"PRAGMA foreign_keys = OFF", "DROP TRIGGER IF EXISTS journal_events_unchanged", "DROP TRIGGER IF EXISTS journal_events_kept"}, append(statements, "PRAGMA wal_checkpoint(TRUNCATE)")...) {
		_, err := db.ExecContext(context.Background(), s)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, db.Close())...)
}
