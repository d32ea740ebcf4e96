package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	codes "modernc.org/sqlite/lib"

	"inband/service/journal"
)

var (
	_ journal.Tx = (*writeTx)(nil)
	_ journal.Tx = (*readTx)(nil)
)

var (
	errOver   = fmt.Errorf("%w: the transaction is over", journal.ErrInvalid)
	errNested = fmt.Errorf("%w: a Query's row func must not use the transaction", journal.ErrInvalid)
)

// guard is what both kinds of transaction hold against misuse. Its first error
// sticks: after SQLite has rolled back on its own (a full disk does that), the next
// statement would stand alone and be committed by itself.
type guard struct {
	now   time.Time
	err   error
	lost  bool // err is one after which SQLite may have rolled back
	inRow bool
}

func (g *guard) Now() time.Time { return g.now }

func (g *guard) usable() error {
	if g.inRow {
		return g.stick(errNested)
	}
	return g.err
}

func (g *guard) stick(err error) error {
	if g.err == nil {
		g.err = err
		g.lost = !failsAlone(err)
	}
	return err
}

// end makes the transaction unusable for whoever has kept it.
func (g *guard) end() { g.err = errOver }

// each calls row for every row and closes the rows.
func (g *guard) each(query string, rows *sql.Rows, row func(scan func(...any) error) error) error {
	defer rows.Close()
	for rows.Next() {
		g.inRow = true
		err := row(rows.Scan)
		g.inRow = false
		if err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return g.stick(database(query, err))
	}
	return nil
}

// writeTx is one operation's turn in the writer's transaction.
type writeTx struct {
	guard
	c      *writeConn
	head   int64           // the last position given, in this transaction or before
	events []journal.Event // what this operation has appended
}

// Append implements journal.Tx. The position is taken from the writer's count, which
// is right because there is one writer and a rollback takes the count back.
func (t *writeTx) Append(stream string, expect int64, kind string, body []byte) error {
	if err := t.usable(); err != nil {
		return err
	}
	if err := checkEvent(stream, expect, kind, body); err != nil {
		return t.stick(err)
	}
	version, err := t.c.version(stream)
	if err != nil {
		return t.stick(err)
	}
	if expect != journal.Any && expect != version {
		return t.stick(&journal.ConflictError{Stream: stream, Expected: expect, Actual: version})
	}
	body = append([]byte{}, body...) // the caller may use it again
	_, err = t.c.exec(`INSERT INTO journal_events (position, stream, version, kind, at, body) VALUES ($1, $2, $3, $4, $5, $6)`,
		t.head+1, stream, version+1, kind, t.now.UnixMilli(), body)
	if err != nil {
		return t.stick(err)
	}
	t.head++
	t.events = append(t.events, journal.Event{Position: t.head, Stream: stream, Version: version + 1, Kind: kind, At: t.now, Body: body})
	return nil
}

// Exec implements journal.Tx.
func (t *writeTx) Exec(query string, args ...any) (int64, error) {
	if err := t.usable(); err != nil {
		return 0, err
	}
	if err := checkArgs(args); err != nil {
		return 0, t.stick(err)
	}
	t.c.restricted.Store(true)
	defer t.c.restricted.Store(false)
	n, err := t.c.exec(query, args...)
	if err != nil {
		return 0, t.stick(err)
	}
	return n, nil
}

// Query implements journal.Tx.
func (t *writeTx) Query(query string, row func(scan func(...any) error) error, args ...any) error {
	if err := t.usable(); err != nil {
		return err
	}
	if err := checkArgs(args); err != nil {
		return t.stick(err)
	}
	t.c.restricted.Store(true)
	defer t.c.restricted.Store(false)
	rows, err := t.c.query(query, args...)
	if err != nil {
		return t.stick(err)
	}
	return t.each(query, rows, row)
}

// readTx is a View's snapshot.
type readTx struct {
	guard
	ctx  context.Context // the View's own, which ends with the View
	tx   *sql.Tx
	pool *readPool
}

// Append implements journal.Tx: it refuses.
func (t *readTx) Append(string, int64, string, []byte) error { return t.stick(journal.ErrReadOnly) }

// Exec implements journal.Tx: it refuses.
func (t *readTx) Exec(string, ...any) (int64, error) { return 0, t.stick(journal.ErrReadOnly) }

// Query implements journal.Tx.
func (t *readTx) Query(query string, row func(scan func(...any) error) error, args ...any) error {
	if err := t.usable(); err != nil {
		return err
	}
	if err := checkArgs(args); err != nil {
		return t.stick(err)
	}
	rows, err := t.pool.query(t.ctx, t.tx, query, args...)
	if primary(err) == codes.SQLITE_READONLY { // INSERT … RETURNING
		return t.stick(fmt.Errorf("%w: %w", journal.ErrReadOnly, database(query, err)))
	}
	if err != nil {
		return t.stick(database(query, err))
	}
	return t.each(query, rows, row)
}

func checkEvent(stream string, expect int64, kind string, body []byte) error {
	if err := checkName("stream", stream, journal.MaxStream); err != nil {
		return err
	}
	if err := checkName("kind", kind, journal.MaxKind); err != nil {
		return err
	}
	if expect < journal.Any {
		return fmt.Errorf("%w: expected version %d of stream %q", journal.ErrInvalid, expect, stream)
	}
	if len(body) > journal.MaxBody {
		return fmt.Errorf("%w: body of %d bytes in stream %q, at most %d", journal.ErrInvalid, len(body), stream, journal.MaxBody)
	}
	return nil
}

func checkName(what, name string, most int) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: empty %s", journal.ErrInvalid, what)
	case len(name) > most:
		return fmt.Errorf("%w: %s of %d bytes, at most %d", journal.ErrInvalid, what, len(name), most)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %s %q is not UTF-8", journal.ErrInvalid, what, name)
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return fmt.Errorf("%w: %s %q holds a control character", journal.ErrInvalid, what, name)
	}
	return nil
}

// checkArgs refuses what the two engines would store differently.
func checkArgs(args []any) error {
	for i, a := range args {
		if err := checkArg(a); err != nil {
			return fmt.Errorf("%w: argument $%d: %w", journal.ErrInvalid, i+1, err)
		}
	}
	return nil
}

func checkArg(a any) error {
	switch v := a.(type) {
	case nil, int64, int, bool, []byte:
		return nil
	case string:
		return checkText(v)
	}
	v := reflect.ValueOf(a)
	switch v.Kind() {
	case reflect.String:
		return checkText(v.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Bool:
		return nil
	}
	return fmt.Errorf("type %T is not portable", a)
}

func checkText(s string) error {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return errors.New("text must be UTF-8 without NUL; other bytes go into a BLOB")
	}
	return nil
}

// failsAlone reports whether an operation's error leaves the rest of its batch
// intact: everything that is not the database's, and a violated constraint, after
// which SQLite undoes the one statement and keeps the transaction.
func failsAlone(err error) bool {
	return !isDatabase(err) || primary(err) == codes.SQLITE_CONSTRAINT
}
