package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"inband/service/journal"
)

// Backup writes the journal as it is at one moment into a new file at path: a database of
// its own, without a log beside it, of mode 0600 and durable when Backup returns. Writers
// are not held up meanwhile; it takes the place of one View. It may last longer than a
// View, since in part it would be worth nothing, and the log grows for so long.
//
// The file must not exist, and after an error none does, unless the process was killed.
// Without room for it the error is ErrFull. ctx ends it, and so does Close.
func (s *Store) Backup(ctx context.Context, path string) error {
	return s.read(ctx, unbounded, func(ctx context.Context) error { return copyTo(ctx, dsn(s.path, "ro"), path) })
}

// Backup is Store.Backup.
func (i *Inspection) Backup(ctx context.Context, path string) error {
	return i.s.read(ctx, unbounded, func(ctx context.Context) error { return copyTo(ctx, dsn(i.s.path, "rw"), path) })
}

func copyTo(ctx context.Context, source, path string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("back up journal: %w", noRoom(err))
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(path)
			err = fmt.Errorf("back up journal: %w", err)
		}
	}()
	db := openPool(source, 1)
	defer db.Close()
	// SQLite writes into a file that is there and empty.
	if _, err := db.ExecContext(ctx, `VACUUM INTO $1`, path); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return translate(err)
	}
	if err := f.Sync(); err != nil {
		return noRoom(err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Version is how far the tables of one feature have come.
type Version struct {
	Schema string `json:"schema"`
	Stored int64  `json:"stored"` // in the journal, 0 for none
	Known  int64  `json:"known"`  // to this program, 0 for a schema that it has never heard of
}

// Newer reports whether a newer program has written v.
func (v Version) Newer() bool { return v.Stored > v.Known }

// Versions returns how far each schema has come: the journal's own, those of schemas in
// their order, and then those that only the journal has.
func (i *Inspection) Versions(ctx context.Context, schemas []journal.Schema) ([]Version, error) {
	db := i.s.readers.db
	all, err := features(db, schemas)
	if err != nil {
		return nil, err
	}
	stored := make(map[string]int64)
	tables, err := versionTables(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		if stored[strings.TrimPrefix(table, versionTable)], err = storedVersion(ctx, db, table); err != nil {
			return nil, err
		}
	}
	var list []Version
	for _, f := range all {
		list = append(list, Version{f.name, stored[f.name], f.known()})
		delete(stored, f.name)
	}
	for _, table := range tables {
		name := strings.TrimPrefix(table, versionTable)
		if v, only := stored[name]; only {
			list = append(list, Version{Schema: name, Stored: v})
		}
	}
	return list, nil
}
