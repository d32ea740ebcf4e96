package sqlite_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"inband/service/journal"
	"inband/service/journal/sqlite"
)

// An inspection sees what a store has left, and changes nothing.
func TestInspect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	s := open(t, config(path))
	for _, name := range []string{"a", "b", "c"} {
		if err := record(s, name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sqlite.Inspect(t.Context(), path); !errors.Is(err, journal.ErrOwned) {
		t.Errorf("while it is owned: %v, want ErrOwned", err)
	}
	var live []journal.Event
	if err := s.Events(t.Context(), 0, func(e journal.Event) error { live = append(live, e); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	i, err := sqlite.Inspect(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), config(path)); !errors.Is(err, journal.ErrOwned) {
		t.Errorf("opened while it is inspected: %v, want ErrOwned", err)
	}
	head, err := i.Head(t.Context())
	if err != nil || head != int64(len(live)) || head == 0 {
		t.Errorf("head %d, %v; want %d", head, err, len(live))
	}
	var seen int
	if err := i.Events(t.Context(), 1, func(e journal.Event) error {
		want := live[e.Position-1]
		if e.Stream != want.Stream || string(e.Body) != string(want.Body) || !e.At.Equal(want.At) {
			t.Errorf("got %+v, want %+v", e, want)
		}
		seen++
		return nil
	}); err != nil || seen != len(live)-1 {
		t.Errorf("%d events after the first, %v; want %d", seen, err, len(live)-1)
	}
	if err := i.View(t.Context(), func(tx journal.Tx) error { return tx.Append("x", 0, "x", nil) }); !errors.Is(err, journal.ErrReadOnly) {
		t.Errorf("a write: %v, want ErrReadOnly", err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if err := i.View(t.Context(), func(journal.Tx) error { return nil }); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("the file was changed: %v", err)
	}
	open(t, config(path)) // and its ownership was given back
}

func TestInspectRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := sqlite.Inspect(t.Context(), filepath.Join(dir, "nothing.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	for name, content := range map[string]string{"empty": "", "text": "no database, " + string(make([]byte, 1011))} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := sqlite.Inspect(t.Context(), path); !errors.Is(err, journal.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "nothing.db*")); err != nil || len(left) > 0 {
		t.Errorf("inspecting nothing leaves %v", left)
	}
}
