package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"inband/service/journal"
)

// minPage is the smallest page that SQLite has, which divides all others.
const minPage = 512 // bytes

// inspectFiles looks at what lies at path before SQLite does, and reports whether
// the database is yet to be made. SQLite would delete the log of a database that has
// gone missing, and with it the only copy of what was committed; and it would fill up
// with zeros a page that has lost its end.
func inspectFiles(path string) (fresh bool, err error) {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return false, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fresh = true
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("%w: not a regular file", journal.ErrInvalid)
	}
	var logged bool
	if wal, err := os.Stat(path + "-wal"); err == nil {
		logged = wal.Size() > 0
	}
	switch {
	case logged && (fresh || info.Size() == 0):
		return false, corrupt("the database is missing, its -wal file is there")
	case !logged && !fresh && info.Size()%minPage != 0:
		// With a log, this is what a crash while it is moved over may leave.
		return false, corrupt(fmt.Sprintf("its length, %d bytes, is not one of whole pages", info.Size()))
	}
	return fresh, nil
}

// createFile makes an empty database that only its owner may read, and sees to it
// that the name survives a power cut.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return noRoom(err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// prepareDatabase makes sure that a database is a sound journal with durable
// settings, and brings its tables up to date.
func prepareDatabase(ctx context.Context, db *sql.DB, c Config) error {
	if err := db.PingContext(ctx); err != nil {
		return damaged(translate(err))
	}
	if err := identify(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
		return damaged(translate(err))
	}
	if err := checkDurable(ctx, db); err != nil {
		return err
	}
	if err := check(ctx, db); err != nil {
		return err
	}
	if c.MaxBytes > 0 {
		if err := limit(ctx, db, c.MaxBytes); err != nil {
			return err
		}
	}
	return damaged(migrate(ctx, db, c.Schemas))
}

// identify marks an empty database as a journal and refuses one that is not.
func identify(ctx context.Context, db *sql.DB) error {
	tables, err := pragma(ctx, db, "SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return damaged(err)
	}
	id, err := pragma(ctx, db, "PRAGMA application_id")
	if err != nil {
		return damaged(err)
	}
	switch {
	case id == applicationID:
		return nil
	case id == 0 && tables == 0:
		_, err := db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID))
		return translate(err)
	}
	return corrupt("it is a SQLite database, but not a journal of this program")
}

// checkDurable reads back what the promise "durable" rests on.
func checkDurable(ctx context.Context, db *sql.DB) error {
	mode, err := column[string](ctx, db, "PRAGMA journal_mode")
	if err != nil {
		return err
	}
	if len(mode) != 1 || mode[0] != "wal" {
		return fmt.Errorf("journal_mode is %q, not wal; the file system may lack shared memory", mode)
	}
	const full = 2
	sync, err := pragma(ctx, db, "PRAGMA synchronous")
	if err != nil {
		return err
	}
	if sync < full {
		return fmt.Errorf("synchronous is %d, below FULL (%d): a power cut could undo what was acknowledged", sync, full)
	}
	keys, err := pragma(ctx, db, "PRAGMA foreign_keys")
	if err != nil {
		return err
	}
	if keys != 1 {
		return errors.New("foreign_keys are off")
	}
	return nil
}

// check reads the database for damage, unless it is large and was closed cleanly.
func check(ctx context.Context, db *sql.DB) error {
	size, err := pragma(ctx, db, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
	if err != nil {
		return damaged(err)
	}
	if size > alwaysCheck {
		unclean, err := pragma(ctx, db, `SELECT count(*) FROM journal_boots WHERE ended IS NULL`)
		if err == nil && unclean == 0 {
			return nil
		}
	}
	const most = 5
	found, err := column[string](ctx, db, fmt.Sprintf("PRAGMA quick_check(%d)", most))
	if err != nil {
		return damaged(err)
	}
	if len(found) == 1 && found[0] == "ok" {
		return nil
	}
	return corrupt("SQLite's check found: " + shorten(strings.Join(found, "; ")))
}

// limit bounds the database file, in whole pages. A file that is larger already
// keeps its size and grows no more.
func limit(ctx context.Context, db *sql.DB, bytes int64) error {
	size, err := pragma(ctx, db, "PRAGMA page_size")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", max(1, bytes/size)))
	return translate(err)
}

// damaged adds to an error that speaks of damage what to do.
func damaged(err error) error {
	if errors.Is(err, journal.ErrCorrupt) {
		return corrupt(err.Error())
	}
	return err
}

// pragma reads one number.
func pragma(ctx context.Context, db *sql.DB, query string) (int64, error) {
	var n int64
	err := db.QueryRowContext(ctx, query).Scan(&n)
	return n, database(query, err)
}
