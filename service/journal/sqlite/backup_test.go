package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"inband/service/journal"
	"inband/service/journal/sqlite"
)

// A backup that is taken while 32 callers write is the journal as it was at one moment: all
// that was acknowledged before it began is there, and nothing in part.
func TestBackupWhileOthersWrite(t *testing.T) {
	dir := t.TempDir()
	s := open(t, config(filepath.Join(dir, "journal.db")))
	var mu sync.Mutex
	kept := map[string]bool{}
	stop := make(chan struct{})
	var writing sync.WaitGroup
	for c := range 32 {
		writing.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprint(c, "/", i)
				if err := record(s, name, make([]byte, 500)); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				mu.Lock()
				kept[name] = true
				mu.Unlock()
			}
		})
	}
	acknowledged := func(n int) map[string]bool {
		for {
			mu.Lock()
			if len(kept) >= n {
				before := make(map[string]bool, len(kept))
				for name := range kept {
					before[name] = true
				}
				mu.Unlock()
				return before
			}
			mu.Unlock()
		}
	}
	for round := range 3 {
		before := acknowledged(200 * (round + 1))
		path := filepath.Join(dir, fmt.Sprint("copy-", round))
		if err := s.Backup(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("the copy is %v, %v, want mode 0600", info.Mode(), err)
		}
		b := open(t, config(path))
		there := recorded(t, b)
		compare(t, there, before, nil)
		shut(t, b)
	}
	close(stop)
	writing.Wait()
	compare(t, recorded(t, s), kept, nil)
}

// What cannot be backed up leaves no file, and what is there stays as it was.
func TestBackupRefuses(t *testing.T) {
	dir := t.TempDir()
	s := open(t, config(filepath.Join(dir, "journal.db")))
	for i := range 300 {
		if err := record(s, fmt.Sprint(i), make([]byte, 4000)); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Backup(t.Context(), other); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file: %v, want that it exists", err)
	}
	if b, err := os.ReadFile(other); string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, try := range map[string]struct {
		err  error
		want error
		path string
	}{
		"no folder":       {s.Backup(t.Context(), filepath.Join(dir, "none", "copy")), fs.ErrNotExist, filepath.Join(dir, "none", "copy")},
		"nobody waits":    {s.Backup(gone, filepath.Join(dir, "gone")), context.Canceled, filepath.Join(dir, "gone")},
		"after a refusal": {s.Backup(t.Context(), filepath.Join(dir, "good")), nil, ""},
	} {
		if !errors.Is(try.err, try.want) || (try.want == nil) != (try.err == nil) {
			t.Errorf("%s: %v, want %v", name, try.err, try.want)
		}
		if _, err := os.Stat(try.path); try.path != "" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s leaves a file: %v", name, err)
		}
	}
	shut(t, s)
	if err := s.Backup(t.Context(), filepath.Join(dir, "late")); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
	i, err := sqlite.Inspect(t.Context(), filepath.Join(dir, "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(i.Backup(t.Context(), filepath.Join(dir, "inspected")), i.Close())
	if err != nil {
		t.Fatal(err)
	}
	if there := recorded(t, open(t, config(filepath.Join(dir, "inspected")))); len(there) != 300 {
		t.Errorf("the copy of an inspection holds %d events, want 300", len(there))
	}
}

func TestBackupToAFullDiskLeavesNothing(t *testing.T) {
	s := open(t, config(filepath.Join(t.TempDir(), "journal.db")))
	for i := range 300 {
		if err := record(s, fmt.Sprint(i), make([]byte, 8000)); err != nil {
			t.Fatal(err)
		}
	}
	small := mount(t, "1m")
	for range 2 {
		if err := s.Backup(t.Context(), filepath.Join(small, "copy")); !errors.Is(err, journal.ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
	}
	if left, err := os.ReadDir(small); err != nil || len(left) > 0 {
		t.Errorf("the disk holds %v, %v", left, err)
	}
}

// Versions tells what a start would bring up to date, and what it would refuse.
func TestVersions(t *testing.T) {
	table := func(name string) string { return "CREATE TABLE " + name + " (a TEXT);" }
	one, two := schema("one", table("a")), schema("two", table("b"), table("c"))
	for name, tc := range map[string]struct {
		known []journal.Schema
		want  []sqlite.Version
	}{
		"the same":    {[]journal.Schema{one, two}, []sqlite.Version{{"one", 1, 1}, {"two", 2, 2}}},
		"more":        {[]journal.Schema{schema("one", table("a"), table("d")), two, schema("three", table("e"))}, []sqlite.Version{{"one", 1, 2}, {"two", 2, 2}, {"three", 0, 1}}},
		"a newer one": {[]journal.Schema{one, schema("two", table("b"))}, []sqlite.Version{{"one", 1, 1}, {"two", 2, 1}}},
		"an unknown":  {[]journal.Schema{two}, []sqlite.Version{{"two", 2, 2}, {"one", 1, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.db")
			shut(t, open(t, sqlite.Config{Path: path, Schemas: []journal.Schema{one, two}}))
			i, err := sqlite.Inspect(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := i.Versions(t.Context(), tc.known)
			if err := errors.Join(err, i.Close()); err != nil {
				t.Fatal(err)
			}
			if got[0].Schema != "journal" || got[0].Stored != got[0].Known || !slices.Equal(got[1:], tc.want) {
				t.Errorf("got %v, want the journal's own and %v", got, tc.want)
			}
			refused := slices.ContainsFunc(got, sqlite.Version.Newer)
			s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Schemas: tc.known})
			if err == nil {
				shut(t, s)
			}
			if errors.Is(err, journal.ErrNewerSchema) != refused {
				t.Errorf("newer: %t, but it opens with %v", refused, err)
			}
		})
	}
}
