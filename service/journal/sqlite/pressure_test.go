package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"inband/service/journal"
)

// endless is a query that is not done in the time of a test.
const endless = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n`

// until waits for a condition that must come.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.After(time.Minute); !met(); {
		select {
		case <-end:
			t.Fatalf("%s: not in a minute", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func logSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func nothing(func(...any) error) error { return nil }

// Case pb-039: a View that is too old is ended, wherever its func is, and is told why.
func TestOldViewIsEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	c := config(path)
	c.MaxView = 20 * time.Millisecond
	s := open(t, c)
	if err := record(s, "one", nil); err != nil {
		t.Fatal(err)
	}
	all := `SELECT stream FROM journal_events`
	for name, f := range map[string]func(journal.Tx) error{
		"in a query that never ends": func(tx journal.Tx) error { return tx.Query(endless, nothing) },
		"with query after query": func(tx journal.Tx) error {
			for {
				if err := tx.Query(all, nothing); err != nil {
					return err
				}
			}
		},
		"between two rows": func(tx journal.Tx) error {
			return tx.Query(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n`, nothing)
		},
		"whose func hides the error": func(tx journal.Tx) error {
			for tx.Query(all, nothing) == nil {
			}
			return nil
		},
	} {
		before := s.Load().TooLong
		err := s.View(t.Context(), f)
		if !errors.Is(err, journal.ErrTooLong) || !strings.Contains(fmt.Sprint(err), "20ms") {
			t.Errorf("%s: got %v, want ErrTooLong after 20ms", name, err)
		}
		if after := s.Load().TooLong; after != before+1 {
			t.Errorf("%s: %d were ended before and %d after", name, before, after)
		}
	}
	// Who asks for nothing more has read all that it wanted.
	waited := s.Load().TooLong
	err := s.View(t.Context(), func(tx journal.Tx) error {
		err := tx.Query(all, nothing)
		until(t, "the end of the View", func() bool { return s.Load().TooLong > waited })
		return err
	})
	if err != nil {
		t.Errorf("a View that had read all: %v", err)
	}
	// A backup is whole or nothing, and may last.
	c.MaxView, c.Path = time.Nanosecond, filepath.Join(t.TempDir(), "journal.db")
	hasty := open(t, c)
	if err := hasty.Backup(t.Context(), filepath.Join(t.TempDir(), "copy")); err != nil {
		t.Errorf("a backup: %v", err)
	}
	shut(t, hasty)
	shut(t, s)
}

// Case pb-039: a View that stays open while others write does not keep the log growing, even
// one that would be allowed to: it is ended, the log is emptied, and one can look at both.
func TestLogStaysBelowItsBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	c := config(path)
	c.MaxLog, c.MaxView = 2<<20, time.Hour
	s := open(t, c)
	var largest int64
	writes := 0
	write := func() {
		if err := record(s, fmt.Sprint(writes), make([]byte, 20_000)); err != nil {
			t.Fatal(err)
		}
		writes++
		largest = max(largest, logSize(t, path))
	}
	write()
	for name, f := range map[string]func(tx journal.Tx) error{
		"a View that does something else": func(tx journal.Tx) error {
			for was := s.Load().TooLong; s.Load().TooLong == was; {
				if l := s.Load(); l.OldestRead <= 0 {
					t.Errorf("the load is %+v while a View is open", l)
				}
				write()
			}
			return tx.Query(`SELECT stream FROM journal_events`, nothing)
		},
		"a View in the middle of its rows": func(tx journal.Tx) error {
			was := s.Load().TooLong
			return tx.Query(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n, journal_state`, func(func(...any) error) error {
				if s.Load().TooLong == was {
					write()
				}
				return nil
			})
		},
	} {
		for range 3 {
			err := s.View(t.Context(), f)
			if !errors.Is(err, journal.ErrTooLong) || !strings.Contains(fmt.Sprint(err), "KiB") {
				t.Errorf("%s: got %v, want ErrTooLong for the log", name, err)
			}
			if s.Load().Log > c.MaxLog/2 {
				t.Errorf("%s: %d bytes of log are left after its end", name, s.Load().Log)
			}
			if l := s.Load(); l.OldestRead != 0 {
				t.Errorf("%s: a read is said to last after its end: %+v", name, l)
			}
		}
	}
	if largest <= c.MaxLog/2 || largest > c.MaxLog {
		t.Errorf("the log came to %d bytes: want more than half of %d, or nothing was tried, and not more", largest, c.MaxLog)
	}
	t.Logf("%d MiB written, %d KiB of log at the most", writes*20_000>>20, largest>>10)
	shut(t, s)
}

// Readers that each take a moment, of which there is always one, are no reason to end any
// of them, nor for the log to grow.
func TestBriefReadersNeverHoldTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	c := config(path)
	c.MaxLog = 2 << 20
	s := open(t, c)
	stop := make(chan struct{})
	var reading sync.WaitGroup
	for range 3 {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := s.View(t.Context(), func(tx journal.Tx) error {
					return tx.Query(`SELECT stream FROM journal_events ORDER BY position DESC LIMIT 20`, nothing)
				})
				if err != nil {
					t.Errorf("a brief View: %v", err)
					return
				}
			}
		})
	}
	var largest int64
	for i := range 150 {
		if err := record(s, fmt.Sprint(i), make([]byte, 20_000)); err != nil {
			t.Fatal(err)
		}
		largest = max(largest, logSize(t, path))
	}
	close(stop)
	reading.Wait()
	if largest > c.MaxLog {
		t.Errorf("the log came to %d bytes, with a bound of %d", largest, c.MaxLog)
	}
	shut(t, s)
}

// What no one can end, a program that has the database open, holds nobody's commit up, and
// the log is emptied once it has gone, also when nobody writes any more.
func TestLogIsEmptiedAfterAForeignReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	c := config(path)
	c.MaxLog = 1 << 20
	s := open(t, c)
	if err := record(s, "first", nil); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRow(`SELECT count(*) FROM journal_events`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	for i := 0; logSize(t, path) < 3*c.MaxLog; i++ {
		if err := record(s, fmt.Sprint(i), make([]byte, 20_000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the log", func() bool { return s.Load().Log == 0 })
	shut(t, s)
}

// Nobody's func runs over a snapshot that is kept for it: a Tail that is slow for ever keeps
// nothing from being tidied away.
func TestTailHoldsNoSnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	c := config(path)
	c.MaxLog = 1 << 20
	s := open(t, c)
	for i := range 3 {
		if err := record(s, fmt.Sprint(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	done := errors.New("done")
	for name, read := range map[string]func(func(journal.Event) error) error{
		"tail":   func(f func(journal.Event) error) error { return s.Tail(t.Context(), 0, f) },
		"stream": func(f func(journal.Event) error) error { return s.Stream(t.Context(), "1", 0, f) },
		"events": func(f func(journal.Event) error) error { return s.Events(t.Context(), 0, f) },
	} {
		err := read(func(journal.Event) error {
			for i := 0; logSize(t, path) < c.MaxLog/4; i++ {
				if err := record(s, fmt.Sprint(name, i), make([]byte, 20_000)); err != nil {
					return err
				}
			}
			for i := 0; logSize(t, path) > c.MaxLog/8; i++ {
				if err := record(s, fmt.Sprint(name, "again", i), make([]byte, 20_000)); err != nil {
					return err
				}
			}
			return done
		})
		if err != done {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.Load().TooLong; n != 0 {
		t.Errorf("%d were ended", n)
	}
	shut(t, s)
}

// Case pb-038: while a View is held, backups are taken and the log is emptied again and
// again, 32 callers write, and none of them hears of a lock.
func TestNobodyHearsOfALock(t *testing.T) {
	for name, tc := range map[string]struct {
		log   int64
		ended bool // the View
	}{
		"the View lasts":                   {1 << 40, false},
		"the View is in the log's way":     {1 << 20, true},
		"whatever is written is tidied up": {64 << 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := config(filepath.Join(dir, "journal.db"))
			c.MaxLog = tc.log
			s := open(t, c)
			if err := record(s, "first", nil); err != nil {
				t.Fatal(err)
			}
			var kept atomic.Int64
			var slowest atomic.Int64
			stop := make(chan struct{})
			var writing sync.WaitGroup
			for w := range 32 {
				writing.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						began := time.Now()
						if err := record(s, fmt.Sprint(w, "/", i), make([]byte, 1000)); err != nil {
							t.Errorf("a write: %v", err)
							return
						}
						if d := int64(time.Since(began)); d > slowest.Load() {
							slowest.Store(d)
						}
						kept.Add(1)
					}
				})
			}
			var n int
			count := func(tx journal.Tx) error {
				return tx.Query(`SELECT count(*) FROM journal_events`, func(scan func(...any) error) error { return scan(&n) })
			}
			err := s.View(t.Context(), func(tx journal.Tx) error {
				if err := count(tx); err != nil {
					return err
				}
				was := n
				for round := range int64(3) {
					until(t, "writes beside the View", func() bool { return kept.Load() > 300*(round+1) || t.Failed() })
					if err := s.Backup(t.Context(), filepath.Join(dir, fmt.Sprint("copy-", round))); err != nil {
						t.Errorf("a backup: %v", err)
					}
				}
				if err := count(tx); err != nil {
					return err
				}
				if n != was {
					t.Errorf("a snapshot of %d events has %d later", was, n)
				}
				return nil
			})
			close(stop)
			writing.Wait()
			if tc.ended != errors.Is(err, journal.ErrTooLong) || !tc.ended && err != nil {
				t.Errorf("the View ended with %v", err)
			}
			t.Logf("%d writes, the slowest took %v; %+v", kept.Load(), time.Duration(slowest.Load()), s.Load())
			shut(t, s)
		})
	}
}

// Case pb-049: while another process has the database, 200 heartbeats and 32 others wait.
// Nobody hears of a lock; when it is gone, the heartbeats are written before the others, but
// for the few places in each commit that are kept for these.
func TestUrgentGoesFirst(t *testing.T) {
	const workers, others, batch = 200, 32, 64
	path := filepath.Join(t.TempDir(), "journal.db")
	s := open(t, config(path))
	cmd, in, lines := start(t, child{Do: "lock", Path: path})
	if !lines.Scan() || lines.Text() != "locked" {
		t.Fatal("the child has no lock")
	}
	var group sync.WaitGroup
	say := func(ctx context.Context, name string) {
		err := s.Update(ctx, func(tx journal.Tx) error { return tx.Append(name, journal.Any, "test.said", nil) })
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The others come first, and each has more to say than fits into one commit.
	for i := range others {
		group.Go(func() {
			for range 4 {
				say(t.Context(), fmt.Sprint("other/", i))
			}
		})
	}
	until(t, "the others wait", func() bool { return s.Queued() == others-1 })
	for i := range workers {
		group.Go(func() { say(journal.Urgent(t.Context()), fmt.Sprint("worker/", i)) })
	}
	until(t, "all wait", func() bool { return s.Queued() == workers+others-1 })
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the child: %v", err)
	}
	group.Wait()
	before, left := 0, workers
	err := s.Events(t.Context(), 0, func(e journal.Event) error {
		switch {
		case strings.HasPrefix(e.Stream, "worker/"):
			left--
		case left > 0:
			before++
		}
		return nil
	})
	// Each full commit of heartbeats has a sixteenth of its places for others.
	if most := workers / (batch - batch/16) * (batch / 16); err != nil || left > 0 || before > most {
		t.Errorf("%d others came before the last heartbeat, want at most %d; %d heartbeats are missing (%v)", before, most, left, err)
	}
	shut(t, s)
}

// Who is urgent all the time keeps nobody out for ever.
func TestUrgentLeavesRoom(t *testing.T) {
	s := open(t, config(filepath.Join(t.TempDir(), "journal.db")))
	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range 128 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.Update(journal.Urgent(t.Context()), func(tx journal.Tx) error {
					return tx.Append(fmt.Sprint("urgent/", i), journal.Any, "test.said", nil)
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 50 {
		if err := record(s, fmt.Sprint(i), nil); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	group.Wait()
	shut(t, s)
}

// A lock that is held for too long is no fault of the caller's: it is told so in the
// journal's words, and one that does not want to wait any longer may leave.
func TestBusyHasAName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	s := open(t, config(path))
	cmd, in, lines := start(t, child{Do: "lock", Path: path})
	if !lines.Scan() {
		t.Fatal("the child has no lock")
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- s.Update(ctx, func(journal.Tx) error { return nil }) }()
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("who left during the wait: %v, want Canceled", err)
	}
	err := record(s, "kept waiting", nil)
	if !errors.Is(err, journal.ErrBusy) || strings.Contains(err.Error(), "locked") {
		t.Errorf("got %v, want ErrBusy in other words", err)
	}
	if err := s.Err(); err != nil {
		t.Errorf("a store that was held up says of itself %v", err)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if err := record(s, "kept waiting", nil); err != nil {
		t.Errorf("after the lock: %v", err)
	}
	shut(t, s)
}
