package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"inband/ops"
	"inband/service/journal/sqlite"
)

// migrated is what box migrate found and did.
type migrated struct {
	State   string           `json:"state"`
	Schemas []sqlite.Version `json:"schemas"` // as they are now
	Changed bool             `json:"changed"`
}

func (a *app) migrateCommand() *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the journal of a state folder up to date, or show its versions",
		Long: `Bring the tables of the journal up to the versions that this program knows, and show
them. box serve does the same at its start; migrate is for doing it beforehand, while no
gateway runs. It goes forwards only: make a backup first. A journal that a newer program
has written is refused, and stays as it is. --show only looks.`,
		Example: `  box migrate --show
  box backup /backups && box migrate`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := a.folder()
			if err != nil {
				return err
			}
			m, err := migrateState(cmd.Context(), folder, show)
			if err != nil {
				return asReadOnly(folder, err)
			}
			if a.json || a.jsonl {
				return a.document(m)
			}
			t := newTable("SCHEMA", "STORED", "KNOWN")
			for _, v := range m.Schemas {
				t.row(v.Schema, fmt.Sprint(v.Stored), fmt.Sprint(v.Known))
			}
			return a.print(t)
		},
	}
	cmd.Flags().BoolVar(&show, "show", false, "only show the versions")
	return a.prints(cmd)
}

// migrateState looks at the schemas of the journal in folder and, unless it is only to
// look, brings them up to date.
func migrateState(ctx context.Context, folder stateFolder, show bool) (migrated, error) {
	if err := folder.whole(); err != nil {
		return migrated{}, err
	}
	before, err := versions(ctx, folder)
	m := migrated{State: string(folder), Schemas: before}
	if err != nil || show {
		return m, err
	}
	if err := newerSchema(before); err != nil {
		return m, err
	}
	store, err := openState(ctx, folder, slog.New(slog.DiscardHandler))
	if err != nil {
		return m, err
	}
	if err := store.Close(); err != nil {
		return m, err
	}
	m.Schemas, err = versions(ctx, folder)
	m.Changed = !slices.Equal(before, m.Schemas)
	return m, err
}

func versions(ctx context.Context, folder stateFolder) ([]sqlite.Version, error) {
	i, err := sqlite.Inspect(ctx, folder.journal())
	if err != nil {
		return nil, err
	}
	list, err := i.Versions(ctx, schemas())
	return list, errors.Join(err, i.Close())
}

// asReadOnly says of a folder that cannot be written what to do.
func asReadOnly(folder stateFolder, err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		user := fmt.Sprint(os.Getuid())
		return &exitError{code: ops.ExitNotAllowed, err: err,
			hint: fmt.Sprintf("the state folder %s must be one that user %s may write, also to look at it; copy it elsewhere if its disk is read-only", folder, user)}
	}
	return err
}
