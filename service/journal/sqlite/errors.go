package sqlite

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"inband/service/journal"
)

// primary is the primary result code of a database error, 0 for any other error.
func primary(err error) int {
	var e *driver.Error
	if !errors.As(err, &e) {
		return codes.SQLITE_OK
	}
	return e.Code() & 0xff
}

// translate adds the journal's own sentinel to a database error. Anything else comes
// back as it is.
func translate(err error) error {
	var kind error
	switch primary(err) {
	case codes.SQLITE_CONSTRAINT:
		kind = journal.ErrConstraint
	case codes.SQLITE_FULL:
		kind = journal.ErrFull
	case codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB:
		kind = journal.ErrCorrupt
	case codes.SQLITE_BUSY:
		return &busyError{err}
	case codes.SQLITE_AUTH:
		return fmt.Errorf("%w: the statement does more than read and write the feature's own tables: %w", journal.ErrInvalid, err)
	default:
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// busyError says in the journal's words that somebody else has the database. SQLite's own,
// "database is locked", would send whoever reads them to look for a fault in here.
type busyError struct{ err error }

func (e *busyError) Error() string {
	return fmt.Sprintf("%v: for more than %v it could not be had", journal.ErrBusy, busyTimeout)
}

func (e *busyError) Unwrap() []error { return []error{journal.ErrBusy, e.err} }

// scarce adds ErrScarce to the error of a connection that cannot be opened. The store
// has opened the same files before, so it is descriptors that are wanting.
func scarce(err error) error {
	if primary(err) == codes.SQLITE_CANTOPEN {
		return fmt.Errorf("%w: %w", journal.ErrScarce, err)
	}
	return err
}

// isDatabase reports whether an error came out of the database rather than out of a
// caller's func or a check before it.
func isDatabase(err error) bool {
	var e *databaseError
	return errors.As(err, &e)
}

// databaseError marks what SQLite or its driver answered, with the statement.
type databaseError struct {
	sql string
	err error
}

func (e *databaseError) Error() string { return fmt.Sprintf("%v (in %q)", e.err, shorten(e.sql)) }
func (e *databaseError) Unwrap() error { return e.err }

func database(sql string, err error) error {
	if err == nil {
		return nil
	}
	return &databaseError{sql, translate(err)}
}

// shorten makes one line of a statement, short enough for a message.
func shorten(sql string) string {
	const most = 120
	line := strings.Join(strings.Fields(sql), " ")
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "…"
	}
	return line
}

// noRoom adds ErrFull to an operating system's error about space.
func noRoom(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", journal.ErrFull, err)
	}
	return err
}

// corrupt is the error for a database that must not be opened, with what to do.
func corrupt(what string) error {
	return fmt.Errorf("%w: %s; restore it together with its -wal file from a backup, or move both aside to begin anew",
		journal.ErrCorrupt, what)
}
