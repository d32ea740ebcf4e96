package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"inband/service/journal"
	"inband/service/journal/storetest"
)

func openAt(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Path: path, Schemas: []journal.Schema{storetest.Schema()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func add(s *Store, name string) error {
	return s.Update(context.Background(), func(tx journal.Tx) error {
		if err := tx.Append(name, 0, "test.added", nil); err != nil {
			return err
		}
		_, err := tx.Exec(`INSERT INTO storetest_balance (name, amount) VALUES ($1, 1)`, name)
		return err
	})
}

func has(t *testing.T, s *Store, name string) bool {
	t.Helper()
	var n int64
	err := s.View(t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT (SELECT count(*) FROM storetest_balance WHERE name = $1) + (SELECT count(*) FROM journal_events WHERE stream = $1)`,
			func(scan func(...any) error) error { return scan(&n) }, name)
	})
	if err != nil {
		t.Fatal(err)
	}
	if n == 1 {
		t.Errorf("%s: the event without its row, or the other way round", name)
	}
	return n > 0
}

// A commit that reports an error may hold or not. Each case says which commits from
// now on really run and which report an error, and what may be told.
func TestCommitErrors(t *testing.T) {
	sick := errors.New("disk on fire")
	for _, c := range []struct {
		name     string
		runs     []bool // of the next commits; later ones are healthy
		want     error  // of the first update, nil: it holds
		there    bool   // after the next start
		writable bool
	}{
		{"holds, and a second commit proves it", []bool{true}, nil, true, true},
		{"does not hold, and a second commit proves it", []bool{false}, sick, false, true},
		{"holds, and nothing proves it", []bool{true, false}, journal.ErrUnknownCommit, true, false},
		{"does not hold, and nothing proves it", []bool{false, false}, journal.ErrUnknownCommit, false, false},
		{"holds, and the proof is doubtful too", []bool{true, true}, journal.ErrUnknownCommit, true, false},
		{"does not hold, and the proof is doubtful too", []bool{false, true}, journal.ErrUnknownCommit, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.db")
			s := openAt(t, path)
			if err := add(s, "before"); err != nil {
				t.Fatal(err)
			}
			healthy, next := s.writer.commit, 0
			s.writer.commit = func() error {
				if next >= len(c.runs) {
					return healthy()
				}
				runs := c.runs[next]
				next++
				if runs {
					if err := healthy(); err != nil {
						t.Errorf("commit: %v", err)
					}
				}
				return sick
			}
			if err := add(s, "doubtful"); !errors.Is(err, c.want) {
				t.Errorf("update: got %v, want %v", err, c.want)
			}
			err := add(s, "next")
			if c.writable != (err == nil) || c.writable != (s.Err() == nil) {
				t.Errorf("next update: got %v and %v, want writable: %v", err, s.Err(), c.writable)
			}
			if !c.writable && (!errors.Is(err, journal.ErrClosed) || errors.Is(err, journal.ErrUnknownCommit)) {
				t.Errorf("next update: got %v, want one that has surely failed", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			s = openAt(t, path)
			for name, want := range map[string]bool{"before": true, "doubtful": c.there, "next": c.writable} {
				if got := has(t, s, name); got != want {
					t.Errorf("%s is there: %v, want %v", name, got, want)
				}
			}
		})
	}
}

// group runs the funcs in exactly one batch.
func group(t *testing.T, s *Store, funcs ...func(journal.Tx) error) []error {
	t.Helper()
	hold, held := make(chan struct{}), make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		_ = s.Update(context.Background(), func(journal.Tx) error { close(held); <-hold; return errors.New("nothing to keep") })
	})
	<-held
	errs := make([]error, len(funcs))
	for i, f := range funcs {
		wait.Go(func() { errs[i] = s.Update(context.Background(), f) })
		for len(s.writer.queue) <= i {
			runtime.Gosched()
		}
	}
	close(hold)
	wait.Wait()
	return errs
}

// When a batch's commit is unknown, so is what any of its operations has seen.
func TestUnknownCommitIsEverybodys(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	s.writer.commit = func() error { return errors.New("disk on fire") }
	errs := group(t, s,
		func(tx journal.Tx) error { return tx.Append("a", 0, "test.added", nil) },
		func(tx journal.Tx) error { return tx.Append("a", 0, "test.added", nil) }, // conflicts with the first
	)
	for i, err := range errs {
		if !errors.Is(err, journal.ErrUnknownCommit) {
			t.Errorf("operation %d: got %v, want unknown", i, err)
		}
	}
}

func TestOneCommitABatch(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	commits, healthy := 0, s.writer.commit
	s.writer.commit = func() error { commits++; return healthy() }
	var funcs []func(journal.Tx) error
	for range 40 {
		funcs = append(funcs, func(tx journal.Tx) error { return tx.Append("s", journal.Any, "test.added", nil) })
	}
	for _, err := range group(t, s, funcs...) {
		if err != nil {
			t.Error(err)
		}
	}
	if commits != 1 {
		t.Errorf("commits of 40 operations: got %d, want 1", commits)
	}
}

// What an operation has seen of another one counts for nothing until both are
// durable: when the batch is undone, an error that rests on it is not told either.
func TestUndoneBatchTellsNothing(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	taken := errors.New("taken")
	claim := func(by string) func(journal.Tx) error {
		return func(tx journal.Tx) error {
			n, err := tx.Exec(`INSERT INTO storetest_balance (name, amount) VALUES ('claim', 1) ON CONFLICT (name) DO NOTHING`)
			if err == nil && n == 0 {
				err = taken
			}
			if err != nil {
				return err
			}
			return tx.Append("claim/"+by, 0, "test.claimed", nil)
		}
	}
	first, healthy := true, s.writer.commit
	s.writer.commit = func() error {
		if first {
			first = false
			return errors.New("not this time")
		}
		return healthy()
	}
	gone := errors.New("gone after its first try")
	tries := 0
	errs := group(t, s, func(tx journal.Tx) error {
		if tries++; tries > 1 {
			return gone
		}
		return claim("first")(tx)
	}, claim("second"))
	if !errors.Is(errs[0], gone) || errs[1] != nil {
		t.Errorf("got %v, want the claim to go to the second", errs)
	}
	var claims []string
	if err := s.Tail(t.Context(), 0, func(e journal.Event) error {
		claims = append(claims, e.Stream)
		return gone // one is all there is
	}); err != gone || claims[0] != "claim/second" || s.head != 1 {
		t.Errorf("claims: got %v up to %d, want the second's alone", claims, s.head)
	}
}

func TestPanicInAnUndoneBatch(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	var raised any
	runs := 0
	before := 0
	errs := group(t, s,
		func(tx journal.Tx) error { before++; return tx.Append("a", 0, "test.added", nil) },
		func(tx journal.Tx) error {
			return tx.Query(`SELECT 1`, func(func(...any) error) error { // unwound with rows open
				runs++
				defer func() { raised = recover(); runtime.Goexit() }()
				panic("boom")
			})
		},
		func(tx journal.Tx) error { _, err := tx.Exec(`INSERT INTO nowhere VALUES (1)`); return err },
		func(tx journal.Tx) error { return tx.Append("b", 0, "test.added", nil) },
	)
	if raised != "boom" || runs != 1 {
		t.Errorf("raised %v in %d runs, want boom in one", raised, runs)
	}
	if errs[0] != nil || errs[2] == nil || errs[3] != nil {
		t.Errorf("got %v, want only the third to fail", errs)
	}
	if before != 2 {
		t.Errorf("runs of the first: got %d, want 2, since a database error undoes the batch", before)
	}
}

func TestBelowFullIsRefused(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	for pragma, says := range map[string]string{
		"synchronous = NORMAL": "below FULL", "synchronous = OFF": "below FULL", "foreign_keys = OFF": "foreign_keys", "query_only = ON": "",
	} {
		db := openPool(dsn(s.path, "rw"), 1)
		defer db.Close()
		if err := checkDurable(t.Context(), db); err != nil {
			t.Errorf("as opened: %v", err)
		}
		if _, err := db.ExecContext(t.Context(), "PRAGMA "+pragma); err != nil {
			t.Fatal(err)
		}
		err := checkDurable(t.Context(), db)
		if (says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", pragma, err, says)
		}
	}
	other := openPool("file::memory:", 1)
	defer other.Close()
	if err := checkDurable(t.Context(), other); err == nil || !strings.Contains(err.Error(), "journal_mode") {
		t.Errorf("without a log: got %v", err)
	}
}

func TestPagesAreBounded(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	body := make([]byte, pageBytes/2)
	err := s.Update(t.Context(), func(tx journal.Tx) error {
		for i := range 10 {
			if err := tx.Append("s", int64(i), "test.added", body); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := s.page(t.Context(), `SELECT position, stream, version, kind, at, body FROM journal_events WHERE position > $1 LIMIT $2`, 0)
	if err != nil || len(page) != 2 {
		t.Errorf("page: got %d events, %v, want 2", len(page), err)
	}
}

func TestStatementsAreBounded(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	err := s.Update(t.Context(), func(tx journal.Tx) error {
		for i := range 3 * maxStatements {
			if _, err := tx.Exec(fmt.Sprintf(`UPDATE storetest_balance SET amount = %d`, i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.writer.c.statements); n > maxStatements {
		t.Errorf("statements kept: got %d, want at most %d", n, maxStatements)
	}
}
