package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	driver "modernc.org/sqlite"
)

// maxStatements bounds the prepared statements that the writer keeps. Features use a
// fixed set; one that builds SQL from values would otherwise grow it for ever.
const maxStatements = 256

// connector opens connections of one kind, each with the same settings, whenever
// database/sql wants one.
type connector struct{ dsn string }

func (c connector) Connect(context.Context) (sqldriver.Conn, error) {
	return (&driver.Driver{}).Open(c.dsn)
}

func (c connector) Driver() sqldriver.Driver { return &driver.Driver{} }

// dsn names the database file with the settings of a connection. Durability is set
// here and read back by checkDurable, since a misspelt pragma is no error to SQLite.
func dsn(path, mode string, more ...string) string {
	q := url.Values{
		"mode":          {mode},
		"_defensive":    {"1"},
		"_dqs":          {"0"},
		"_synchronous":  {"FULL"},
		"_foreign_keys": {"1"},
		"_busy_timeout": {strconv.FormatInt(busyTimeout.Milliseconds(), 10)},
		"_pragma":       append([]string{"trusted_schema(0)", "cell_size_check(1)"}, more...),
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// openPool makes a pool of connections that stay open until it is closed.
func openPool(dsn string, conns int) *sql.DB {
	db := sql.OpenDB(connector{dsn})
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db
}

// writeConn is the writer's one connection, with its prepared statements. No
// caller's context reaches it: an interrupted statement would roll back what others
// wrote.
type writeConn struct {
	conn       *sql.Conn
	statements map[statement]*sql.Stmt

	// restricted is set while a feature's statement is prepared and run; see
	// authorize. It is atomic because it moves between goroutines with the turn.
	restricted atomic.Bool
}

// statement is the key of a prepared statement. The two kinds are kept apart, or a
// feature's "ROLLBACK" would find the writer's own, compiled with all rights.
type statement struct {
	restricted bool
	sql        string
}

func newWriteConn(ctx context.Context, db *sql.DB) (*writeConn, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, translate(err)
	}
	c := &writeConn{conn: conn, statements: map[statement]*sql.Stmt{}}
	err = conn.Raw(func(raw any) error {
		r, ok := raw.(driver.AuthorizerRegisterer)
		if !ok {
			return fmt.Errorf("the SQLite driver has no authoriser")
		}
		return r.RegisterAuthorizer(c.authorize)
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// authorize lets a feature's statement read anything and write its own tables.
// SQLite asks it while it compiles a statement, so it costs nothing afterwards. It
// is what makes "COMMIT" or "PRAGMA synchronous = OFF" inside an Exec an error.
func (c *writeConn) authorize(action driver.AuthorizerActionCode, table, _, _, _ string) driver.AuthorizerReturnCode {
	if !c.restricted.Load() {
		return driver.AuthorizerOK
	}
	switch action {
	case driver.AuthSelect, driver.AuthRead, driver.AuthFunction, driver.AuthRecursive:
		return driver.AuthorizerOK
	case driver.AuthInsert, driver.AuthUpdate, driver.AuthDelete:
		if strings.HasPrefix(table, "journal_") || strings.HasPrefix(table, "sqlite_") {
			return driver.AuthorizerDeny
		}
		return driver.AuthorizerOK
	}
	return driver.AuthorizerDeny
}

func (c *writeConn) prepare(query string) (*sql.Stmt, error) {
	key := statement{c.restricted.Load(), query}
	if s := c.statements[key]; s != nil {
		return s, nil
	}
	if len(c.statements) >= maxStatements {
		c.forget()
	}
	s, err := c.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, database(query, err)
	}
	c.statements[key] = s
	return s, nil
}

// forget closes the prepared statements. What closing says is of no interest: it
// repeats the error of the statement's last run.
func (c *writeConn) forget() {
	for _, s := range c.statements {
		s.Close()
	}
	clear(c.statements)
}

func (c *writeConn) exec(query string, args ...any) (int64, error) {
	s, err := c.prepare(query)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, database(query, err)
	}
	n, err := r.RowsAffected()
	return n, database(query, err)
}

func (c *writeConn) query(query string, args ...any) (*sql.Rows, error) {
	s, err := c.prepare(query)
	if err != nil {
		return nil, err
	}
	rows, err := s.QueryContext(context.Background(), args...)
	return rows, database(query, err)
}

// integer reads one number.
func (c *writeConn) integer(query string, args ...any) (int64, error) {
	s, err := c.prepare(query)
	if err != nil {
		return 0, err
	}
	var n int64
	err = s.QueryRowContext(context.Background(), args...).Scan(&n)
	return n, database(query, err)
}

// version is the current version of a stream, 0 for one without events.
func (c *writeConn) version(stream string) (int64, error) {
	return c.integer(`SELECT coalesce(max(version), 0) FROM journal_events WHERE stream = $1`, stream)
}

func (c *writeConn) close() error {
	c.forget()
	return c.conn.Close()
}
