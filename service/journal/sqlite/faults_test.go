package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/journal/storetest"
)

func config(path string) sqlite.Config {
	return sqlite.Config{Path: path, Schemas: []journal.Schema{storetest.Schema()}}
}

func open(t testing.TB, c sqlite.Config) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // tests that care close it themselves
	return s
}

func shut(t testing.TB, s *sqlite.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// record appends an event and its projection under one name.
func record(s journal.Store, name string, body []byte) error {
	return s.Update(context.Background(), func(tx journal.Tx) error {
		if err := tx.Append(name, 0, "test.recorded", body); err != nil {
			return err
		}
		_, err := tx.Exec(`INSERT INTO storetest_balance (name, amount) VALUES ($1, $2)`, name, len(body))
		return err
	})
}

// recorded reads the names of the events and checks that the projections are the same
// and that no position is missing.
func recorded(t testing.TB, s journal.Store) map[string]bool {
	t.Helper()
	events, rows := map[string]bool{}, map[string]bool{}
	var next int64
	err := s.View(context.Background(), func(tx journal.Tx) error {
		err := tx.Query(`SELECT position, stream FROM journal_events ORDER BY position`, func(scan func(...any) error) error {
			var position int64
			var name string
			if err := scan(&position, &name); err != nil {
				return err
			}
			if next++; position != next {
				return fmt.Errorf("position %d where %d should be", position, next)
			}
			events[name] = true
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Query(`SELECT name FROM storetest_balance`, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			rows[name] = true
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(events, rows) {
		t.Errorf("%d events and %d rows are not of the same names", len(events), len(rows))
	}
	if head, err := s.Head(context.Background()); err != nil || head != next {
		t.Errorf("head: got %d, %v, want %d", head, err, next)
	}
	return events
}

// compare holds what callers were told against what is there.
func compare(t testing.TB, there, kept, lost map[string]bool) {
	t.Helper()
	for name := range kept {
		if !there[name] {
			t.Errorf("%s was reported committed and is not there", name)
		}
	}
	for name := range lost {
		if there[name] {
			t.Errorf("%s was reported failed and is there", name)
		}
	}
}

// exhaust writes from many callers until each has met the end of the room several
// times, and returns what each of them was told.
func exhaust(t *testing.T, s journal.Store) (kept, lost map[string]bool) {
	t.Helper()
	const callers, failures = 16, 5
	kept, lost = map[string]bool{}, map[string]bool{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for c := range callers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 7))
			for i, failed := 0, 0; failed < failures; i++ {
				name := fmt.Sprint(c, "/", i)
				err := record(s, name, make([]byte, random.IntN(6000)))
				mu.Lock()
				if err == nil {
					kept[name] = true
				} else {
					lost[name] = true
					failed++
				}
				mu.Unlock()
				if err != nil && !errors.Is(err, journal.ErrFull) {
					t.Errorf("%s: got %v, want full", name, err)
				}
			}
		})
	}
	group.Wait()
	if len(kept) == 0 {
		t.Error("nothing was kept")
	}
	return kept, lost
}

func TestFullByPageCount(t *testing.T) {
	c := config(filepath.Join(t.TempDir(), "journal.db"))
	c.MaxBytes = 512 << 10
	s := open(t, c)
	kept, lost := exhaust(t, s)
	compare(t, recorded(t, s), kept, lost)
	if err := s.Err(); !errors.Is(err, journal.ErrFull) {
		t.Errorf("a full store says of itself %v, want ErrFull", err)
	}
	_ = s.Close() // its own last row may not fit
	c.MaxBytes = 0
	s = open(t, c)
	compare(t, recorded(t, s), kept, lost)
	if err := record(s, "after", nil); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func mount(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	storetest.Need(t, "tmpfs mount", unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestFullByDisk(t *testing.T) {
	dir := mount(t, "1m")
	c := config(filepath.Join(dir, "journal.db"))
	s := open(t, c)
	kept, lost := exhaust(t, s)
	compare(t, recorded(t, s), kept, lost)
	_ = s.Close()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	s = open(t, c)
	compare(t, recorded(t, s), kept, lost)
	if err := record(s, "after", nil); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestFullFromTheStart(t *testing.T) {
	dir := mount(t, "64k")
	refused(t, config(filepath.Join(dir, "journal.db")), journal.ErrFull, "")
}

// refused opens what must not open, and checks that nothing stays open or locked.
func refused(t *testing.T, c sqlite.Config, want error, says string) {
	t.Helper()
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, err := sqlite.Open(context.Background(), c)
	if err == nil {
		_ = s.Close()
		t.Fatalf("opened, want %v", want)
	}
	if want != nil && !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	if !strings.Contains(err.Error(), c.Path) || !strings.Contains(err.Error(), says) {
		t.Errorf("message %q does not hold %q and %q", err, c.Path, says)
	}
	if errors.Is(err, journal.ErrOwned) || c.Path == "" {
		return
	}
	links, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink("/proc/self/fd/" + l.Name()); err == nil && strings.HasPrefix(to, c.Path) {
			t.Errorf("%s stays open", to)
		}
	}
}

// filled is a closed journal of a few hundred pages.
func filled(t *testing.T) (sqlite.Config, map[string]bool) {
	t.Helper()
	c := config(filepath.Join(t.TempDir(), "journal.db"))
	s := open(t, c)
	for i := range 200 {
		if err := record(s, fmt.Sprint("event/", i), make([]byte, 10*i)); err != nil {
			t.Fatal(err)
		}
	}
	names := recorded(t, s)
	shut(t, s)
	return c, names
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestGarbage(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	for _, size := range []int{1, 100, 4096, 100_000} {
		garbage := make([]byte, size)
		_, _ = io.ReadFull(random, garbage)
		c := config(filepath.Join(t.TempDir(), "journal.db"))
		write(t, c.Path, garbage)
		refused(t, c, journal.ErrCorrupt, "restore it")
		if !bytes.Equal(read(t, c.Path), garbage) {
			t.Errorf("%d bytes of garbage were changed", size)
		}
	}
}

func TestDamagedPages(t *testing.T) {
	c, _ := filled(t)
	sound := read(t, c.Path)
	const page = 4096
	for at := 0; at < len(sound); at += page {
		damaged := bytes.Clone(sound)
		for i := range 8 {
			damaged[at+i] ^= 0xff
		}
		write(t, c.Path, damaged)
		refused(t, c, journal.ErrCorrupt, "restore it")
	}
	write(t, c.Path, sound)
	shut(t, open(t, c))
}

func TestTruncated(t *testing.T) {
	c, _ := filled(t)
	sound := read(t, c.Path)
	for _, size := range []int{1, 50, 100, 512, 4096, 5000, 8192, len(sound) / 2, len(sound) - 4096, len(sound) - 1} {
		write(t, c.Path, sound[:size])
		refused(t, c, journal.ErrCorrupt, "restore it")
	}
}

func TestMissingBesideItsLog(t *testing.T) {
	for _, how := range []string{"missing", "empty"} {
		c, _ := filled(t)
		log := []byte("what is left")
		write(t, c.Path+"-wal", log)
		if err := os.Remove(c.Path); err != nil {
			t.Fatal(err)
		}
		if how == "empty" {
			write(t, c.Path, nil)
		}
		refused(t, c, journal.ErrCorrupt, "-wal file is there")
		if !bytes.Equal(read(t, c.Path+"-wal"), log) {
			t.Errorf("%s: the log was changed", how)
		}
	}
}

func TestStaleLog(t *testing.T) {
	c, names := filled(t)
	random := rand.NewChaCha8([32]byte{2})
	for _, size := range []int{1, 32, 100_000} {
		stale := make([]byte, size)
		_, _ = io.ReadFull(random, stale)
		write(t, c.Path+"-wal", stale)
		s := open(t, c)
		if got := recorded(t, s); !maps.Equal(got, names) {
			t.Errorf("%d bytes of a stale log: got %d events, want %d", size, len(got), len(names))
		}
		shut(t, s)
	}
}

func TestForeignDatabase(t *testing.T) {
	c := config(filepath.Join(t.TempDir(), "other.db"))
	db, err := sql.Open("sqlite", c.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE theirs (x TEXT)`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before := read(t, c.Path)
	refused(t, c, journal.ErrCorrupt, "not a journal")
	if !bytes.Equal(read(t, c.Path), before) {
		t.Error("the foreign database was changed")
	}
}

func TestEventsCutOff(t *testing.T) {
	c, _ := filled(t)
	db, err := sql.Open("sqlite", c.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`DELETE FROM journal_events WHERE position = 200`); err == nil {
		t.Error("an event was deleted")
	}
	if _, err := db.Exec(`UPDATE journal_events SET kind = 'other'`); err == nil {
		t.Error("events were changed")
	}
	if _, err := db.Exec(`DROP TRIGGER journal_events_kept; DELETE FROM journal_events WHERE position = 200`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	refused(t, c, journal.ErrCorrupt, "its last event is at position 199 and its state says 200")
}

func schema(name string, files ...string) journal.Schema {
	dir := fstest.MapFS{}
	for i, text := range files {
		dir[fmt.Sprintf("sqlite/%05d_step.sql", i+1)] = &fstest.MapFile{Data: []byte("-- +goose Up\n" + text)}
	}
	return journal.Schema{Name: name, FS: dir}
}

func TestSchemas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	with := func(schemas ...journal.Schema) sqlite.Config { return sqlite.Config{Path: path, Schemas: schemas} }
	calls1 := schema("calls", `CREATE TABLE calls (id TEXT PRIMARY KEY);`)
	calls2 := schema("calls", `CREATE TABLE calls (id TEXT PRIMARY KEY);`, `ALTER TABLE calls ADD COLUMN op TEXT;`)
	rooms := schema("rooms", `CREATE TABLE rooms (id TEXT PRIMARY KEY);`)

	shut(t, open(t, with(calls1)))
	refused(t, with(calls1, schema("rooms", `CREATE TABLE rooms (id TEXT PRIMARY KEY);`, `CREATE TABEL x;`)), nil, "rooms")
	refused(t, with(calls1, calls1), journal.ErrInvalid, "twice")
	refused(t, with(schema("Bad-Name", `SELECT 1;`)), journal.ErrInvalid, "Bad-Name")
	refused(t, with(journal.Schema{Name: "empty", FS: fstest.MapFS{}}), nil, "empty")
	shut(t, open(t, with(rooms, calls2)))
	shut(t, open(t, with(rooms, calls2)))

	before := read(t, path)
	refused(t, with(rooms, calls1), journal.ErrNewerSchema, "calls is at version 2, this program knows versions up to 1")
	refused(t, with(calls2), journal.ErrNewerSchema, "rooms at version 1")
	if !bytes.Equal(read(t, path), before) {
		t.Error("a refused database was changed")
	}
	shut(t, open(t, with(rooms, calls2)))
}

func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	refused(t, config(filepath.Join(dir, "no", "such", "journal.db")), fs.ErrNotExist, "")
	refused(t, config(dir), journal.ErrInvalid, "not a regular file")
	refused(t, sqlite.Config{}, journal.ErrInvalid, "no path")
	odd := config(filepath.Join(dir, "odd ?#%41 name.db"))
	s := open(t, odd)
	if err := record(s, "x", nil); err != nil {
		t.Error(err)
	}
	shut(t, s)
	info, err := os.Stat(odd.Path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode: got %v, want 0600", got)
	}
}

func TestReadOnlyFolder(t *testing.T) {
	dir := mount(t, "8m")
	c := config(filepath.Join(dir, "journal.db"))
	shut(t, open(t, c))
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	refused(t, c, unix.EROFS, "read-only file system")
	refused(t, config(filepath.Join(dir, "new.db")), unix.EROFS, "read-only file system")
}

func TestClockAcrossBoots(t *testing.T) {
	c := config(filepath.Join(t.TempDir(), "journal.db"))
	clock := new(storetest.Clock)
	c.Clock = clock.Now
	late := time.Date(2031, 5, 6, 7, 8, 9, 123_000_000, time.UTC)
	clock.Set(late)
	s := open(t, c)
	if err := record(s, "late", nil); err != nil {
		t.Fatal(err)
	}
	first := s.Boot()
	shut(t, s)
	clock.Set(late.Add(-48 * time.Hour))
	s = open(t, c)
	err := s.Update(t.Context(), func(tx journal.Tx) error {
		if got := tx.Now(); !got.Equal(late) {
			return fmt.Errorf("clock: got %v, want %v", got, late)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if s.Boot() <= first {
		t.Errorf("boot %s does not sort after %s", s.Boot(), first)
	}
}
