package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/pressly/goose/v3"

	"inband/service/journal"
)

//go:embed migrations
var migrations embed.FS

// versionTable begins the name of each feature's version table.
const versionTable = "journal_schema_"

var schemaName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// feature is one schema with its goose provider.
type feature struct {
	name     string
	provider *goose.Provider
}

// features checks the schemas and puts the journal's own before them.
func features(db *sql.DB, schemas []journal.Schema) ([]feature, error) {
	own, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	var all []feature
	seen := map[string]bool{}
	for _, s := range append([]journal.Schema{{Name: "journal", FS: own}}, schemas...) {
		switch {
		case !schemaName.MatchString(s.Name):
			return nil, fmt.Errorf("%w: schema name %q: want lower-case letters, digits and underscores", journal.ErrInvalid, s.Name)
		case seen[s.Name]:
			return nil, fmt.Errorf("%w: schema name %q is taken twice", journal.ErrInvalid, s.Name)
		}
		seen[s.Name] = true
		dir, err := fs.Sub(s.FS, "sqlite")
		if err != nil {
			return nil, fmt.Errorf("schema %s: %w", s.Name, err)
		}
		p, err := goose.NewProvider(goose.DialectSQLite3, db, dir,
			goose.WithTableName(versionTable+s.Name),
			goose.WithDisableGlobalRegistry(true),
			goose.WithLogger(goose.NopLogger()))
		if err != nil {
			return nil, fmt.Errorf("schema %s: %w", s.Name, err)
		}
		all = append(all, feature{s.Name, p})
	}
	return all, nil
}

// migrate brings every feature to the version that this program knows. It looks at
// all of them before it changes any, so a refused database is left as it was.
func migrate(ctx context.Context, db *sql.DB, schemas []journal.Schema) error {
	all, err := features(db, schemas)
	if err != nil {
		return err
	}
	if err := refuseNewer(ctx, db, all); err != nil {
		return err
	}
	for _, f := range all {
		if _, err := f.provider.Up(ctx); err != nil {
			return fmt.Errorf("migrate schema %s: %w", f.name, translate(err))
		}
	}
	return nil
}

// refuseNewer compares what the database holds with what this program knows. A
// feature it has never heard of counts as newer: its rows would be left unattended.
func refuseNewer(ctx context.Context, db *sql.DB, all []feature) error {
	tables, err := versionTables(ctx, db)
	if err != nil {
		return err
	}
	for _, table := range tables {
		name := strings.TrimPrefix(table, versionTable)
		version, err := storedVersion(ctx, db, table)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(f feature) bool { return f.name == name })
		if i < 0 {
			return fmt.Errorf("%w: it holds schema %s at version %d, which this program does not know", journal.ErrNewerSchema, name, version)
		}
		if known := all[i].known(); version > known {
			return fmt.Errorf("%w: schema %s is at version %d, this program knows versions up to %d", journal.ErrNewerSchema, name, version, known)
		}
	}
	return nil
}

// known is the last version that this program has of f.
func (f feature) known() (last int64) {
	for _, source := range f.provider.ListSources() {
		last = max(last, source.Version)
	}
	return last
}

// versionTables are the tables that hold the versions of schemas.
func versionTables(ctx context.Context, db *sql.DB) ([]string, error) {
	return column[string](ctx, db, `SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB '`+versionTable+`*' ORDER BY name`)
}

// storedVersion is the version that one of them holds.
func storedVersion(ctx context.Context, db *sql.DB, table string) (int64, error) {
	versions, err := column[int64](ctx, db, `SELECT coalesce(max(version_id), 0) FROM "`+strings.ReplaceAll(table, `"`, `""`)+`" WHERE is_applied`)
	if err != nil {
		return 0, err
	}
	return versions[0], nil
}

// column reads a statement's only column.
func column[T any](ctx context.Context, db *sql.DB, query string) ([]T, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, database(query, err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, database(query, err)
		}
		all = append(all, v)
	}
	return all, database(query, rows.Err())
}
