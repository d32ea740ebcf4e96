// Package storetest is the suite that every engine of journal.Store passes.
//
// An engine's test hands [Run] a func that opens an empty store with [Schema] among
// its schemas. What only one engine can do (a full disk, a damaged file, a kill) is
// tested beside that engine; [Need] is there for tests that need something of the
// machine.
package storetest

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inband/service/journal"
)

//go:embed migrations
var migrations embed.FS

// Schema is the feature that the suite uses: a table of balances with a unique name
// and a check, and a table that refers to it with a deferred foreign key.
func Schema() journal.Schema {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the name is valid
	}
	return journal.Schema{Name: "storetest", FS: dir}
}

// Need skips the test for want of something that the machine does not give, named by
// what, or fails it where nothing may be skipped: with INBAND_CI=1.
func Need(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("INBAND_CI") == "1" {
		t.Fatalf("need %s: %v", what, err)
	}
	t.Skipf("need %s: %v", what, err)
}

// Clock is a wall clock that a test sets. Its zero value tells 1970.
type Clock struct{ ms atomic.Int64 }

// Set moves the clock, forwards or back.
func (c *Clock) Set(t time.Time) { c.ms.Store(t.UnixMilli()) }

// Now is what to give an engine as its wall clock.
func (c *Clock) Now() time.Time { return time.UnixMilli(c.ms.Load()) }

// Open opens a new, empty store with Schema and the given wall clock. The suite
// closes it; whatever else it holds, Open gives to t.Cleanup.
type Open func(t *testing.T, clock *Clock) journal.Store

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, test := range []struct {
		name string
		run  func(*trial)
	}{
		{"versions count from one and conflicts name both", versions},
		{"names and bodies out of bounds are refused", bounds},
		{"events come back as they were written", roundTrip},
		{"32 concurrent writers leave no gap and no disorder", concurrent},
		{"a failing operation leaves its batch alone", isolation},
		{"what fails is told only its own error", ownErrors},
		{"a hidden error still refuses the commit", hiddenError},
		{"a deferred constraint fails its own operation only", deferred},
		{"a panic is raised in its caller and leaves nothing", panics},
		{"an ended goroutine leaves nothing", goexit},
		{"a context that has ended begins nothing", cancelledBefore},
		{"a context that ends in the queue withdraws", cancelledQueued},
		{"a context that ends later does not change the outcome", cancelledStarted},
		{"a view is a snapshot and refuses writes", view},
		{"a view ends with its context", viewContext},
		{"statements that are not a feature's are refused", forbidden},
		{"arguments that are not portable are refused", arguments},
		{"a query ends at its row's error and cannot nest", queries},
		{"a transaction is over when its func returns", over},
		{"tail resumes after any position and follows", tail},
		{"tail ends with its func, its context, its store", tailEnds},
		{"stream reads one stream from any version", stream},
		{"the clock never runs back", clockBack},
		{"close finishes what was accepted and refuses the rest", closing},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := new(Clock)
			clock.Set(start)
			s := open(t, clock)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			test.run(&trial{t, s, clock})
		})
	}
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// trial is one test's store with the steps that most tests take.
type trial struct {
	*testing.T
	s     journal.Store
	clock *Clock
}

func (b *trial) update(f func(journal.Tx) error) {
	b.Helper()
	if err := b.s.Update(b.Context(), f); err != nil {
		b.Fatalf("update: %v", err)
	}
}

func (b *trial) fails(want error, f func(journal.Tx) error) {
	b.Helper()
	if err := b.s.Update(b.Context(), f); !errors.Is(err, want) {
		b.Fatalf("update: got %v, want %v", err, want)
	}
}

func (b *trial) append(stream string, expect int64) {
	b.Helper()
	b.update(func(tx journal.Tx) error { return tx.Append(stream, expect, "test.happened", []byte("{}")) })
}

// count reads a number in a View.
func (b *trial) count(query string, args ...any) (n int64) {
	b.Helper()
	err := b.s.View(b.Context(), func(tx journal.Tx) (err error) {
		n, err = number(tx, query, args...)
		return err
	})
	if err != nil {
		b.Fatalf("view %q: %v", query, err)
	}
	return n
}

func number(tx journal.Tx, query string, args ...any) (n int64, err error) {
	err = tx.Query(query, func(scan func(...any) error) error { return scan(&n) }, args...)
	return n, err
}

func put(tx journal.Tx, name string, amount int64) error {
	_, err := tx.Exec(`INSERT INTO storetest_balance (name, amount) VALUES ($1, $2)`, name, amount)
	return err
}

func (b *trial) head() int64 {
	b.Helper()
	n, err := b.s.Head(b.Context())
	if err != nil {
		b.Fatalf("head: %v", err)
	}
	return n
}

// events reads what is there after a position.
func (b *trial) events(after int64) []journal.Event {
	b.Helper()
	var all []journal.Event
	head := b.head()
	if after >= head {
		return nil
	}
	done := errors.New("done")
	err := b.s.Tail(b.Context(), after, func(e journal.Event) error {
		all = append(all, e)
		if e.Position == head {
			return done
		}
		return nil
	})
	if err != done {
		b.Fatalf("tail after %d: %v", after, err)
	}
	return all
}

func versions(b *trial) {
	b.append("call/1", 0)
	b.append("call/1", 1)
	b.append("call/2", journal.Any)
	b.append("call/2", journal.Any)
	for _, expect := range []int64{0, 1, 3} {
		err := b.s.Update(b.Context(), func(tx journal.Tx) error {
			return tx.Append("call/1", expect, "test.happened", nil)
		})
		var conflict *journal.ConflictError
		if !errors.Is(err, journal.ErrConflict) || !errors.As(err, &conflict) {
			b.Fatalf("append at version 2, expecting %d: got %v, want a conflict", expect, err)
		}
		want := journal.ConflictError{Stream: "call/1", Expected: expect, Actual: 2}
		if *conflict != want {
			b.Errorf("conflict: got %+v, want %+v", *conflict, want)
		}
	}
	b.update(func(tx journal.Tx) error { // one transaction sees its own appends
		return errors.Join(
			tx.Append("call/1", 2, "test.happened", nil),
			tx.Append("call/1", 3, "test.happened", nil))
	})
	if got := b.head(); got != 6 {
		b.Errorf("head: got %d, want 6", got)
	}
}

func bounds(b *trial) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		name, stream, kind string
		expect             int64
		body               int
		ok                 bool
	}{
		{"largest of all", long(journal.MaxStream), long(journal.MaxKind), 0, journal.MaxBody, true},
		{"other scripts", "raum/günther/日本", "test.✓", 0, 0, true},
		{"empty stream", "", "k", 0, 0, false},
		{"empty kind", "s", "", 0, 0, false},
		{"long stream", long(journal.MaxStream + 1), "k", 0, 0, false},
		{"long kind", "s", long(journal.MaxKind + 1), 0, 0, false},
		{"long body", "s", "k", 0, journal.MaxBody + 1, false},
		{"stream not UTF-8", "s\xff", "k", 0, 0, false},
		{"kind not UTF-8", "s", "k\xc3", 0, 0, false},
		{"NUL in stream", "s\x00t", "k", 0, 0, false},
		{"NUL in kind", "s", "k\x00", 0, 0, false},
		{"line end in stream", "s\nt", "k", 0, 0, false},
		{"version below Any", "s", "k", -2, 0, false},
	} {
		before := b.head()
		err := b.s.Update(b.Context(), func(tx journal.Tx) error {
			return tx.Append(c.stream, c.expect, c.kind, make([]byte, c.body))
		})
		if c.ok && err != nil || !c.ok && !errors.Is(err, journal.ErrInvalid) {
			b.Errorf("%s: got %v, want accepted: %v", c.name, err, c.ok)
		}
		if moved := b.head() != before; moved != c.ok {
			b.Errorf("%s: head moved: %v, want %v", c.name, moved, c.ok)
		}
	}
}

func roundTrip(b *trial) {
	bodies := [][]byte{nil, {}, []byte(`{"a":1}`), {0, 0xff, 0}, []byte("\x00"), make([]byte, 1<<20)}
	var want []journal.Event
	for i, body := range bodies {
		at := start.Add(time.Duration(i) * 1234 * time.Millisecond)
		b.clock.Set(at)
		b.update(func(tx journal.Tx) error { return tx.Append("s", int64(i), fmt.Sprint("kind.", i), body) })
		if body == nil {
			body = []byte{}
		}
		want = append(want, journal.Event{Position: int64(i + 1), Stream: "s", Version: int64(i + 1), Kind: fmt.Sprint("kind.", i), At: at, Body: body})
	}
	if diff := cmp.Diff(want, b.events(0), cmp.Comparer(bytes.Equal)); diff != "" {
		b.Errorf("events (-want +got):\n%s", diff)
	}
}

func concurrent(b *trial) {
	const writers, each = 32, 25
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				err := b.s.Update(b.Context(), func(tx journal.Tx) error {
					if err := tx.Append(fmt.Sprint("writer/", w), int64(i), "test.counted", nil); err != nil {
						return err
					}
					if err := tx.Append("shared", journal.Any, "test.shared", nil); err != nil {
						return err
					}
					return put(tx, fmt.Sprint(w, "/", i), 1)
				})
				if err != nil {
					b.Errorf("writer %d, %d: %v", w, i, err)
				}
			}
		})
	}
	// A reader alongside must never see a gap.
	ctx, cancel := context.WithCancel(b.Context())
	followed := make(chan error, 1)
	go func() {
		next := int64(1)
		followed <- b.s.Tail(ctx, 0, func(e journal.Event) error {
			if e.Position != next {
				return fmt.Errorf("position %d follows %d", e.Position, next-1)
			}
			if next++; next > 2*writers*each {
				cancel()
			}
			return nil
		})
	}()
	group.Wait()
	if b.Failed() {
		cancel()
	}
	if err := <-followed; !errors.Is(err, context.Canceled) {
		b.Errorf("tail: %v", err)
	}
	last := map[string]int64{}
	all := b.events(0)
	for i, e := range all {
		if e.Position != int64(i+1) || e.Version != last[e.Stream]+1 {
			b.Fatalf("event %d: position %d, version %d of %s after %d", i, e.Position, e.Version, e.Stream, last[e.Stream])
		}
		last[e.Stream] = e.Version
	}
	if len(all) != 2*writers*each || last["shared"] != writers*each {
		b.Errorf("got %d events, %d of them shared", len(all), last["shared"])
	}
	if got := b.count(`SELECT count(*) FROM storetest_balance`); got != writers*each {
		b.Errorf("projection: got %d rows, want %d", got, writers*each)
	}
}

// together runs the funcs as one batch where the engine makes batches: it holds the
// writer with an operation of its own until all of them wait.
func (b *trial) together(funcs ...func(journal.Tx) error) []error {
	b.Helper()
	hold, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var group sync.WaitGroup
	group.Go(func() {
		err := b.s.Update(b.Context(), func(journal.Tx) error {
			once.Do(func() { close(held); <-hold })
			return nil
		})
		if err != nil {
			b.Errorf("holding the writer: %v", err)
		}
	})
	<-held
	errs := make([]error, len(funcs))
	var begun atomic.Int64
	for i, f := range funcs {
		group.Go(func() {
			begun.Add(1)
			errs[i] = b.s.Update(b.Context(), f)
		})
	}
	for begun.Load() < int64(len(funcs)) {
		runtime.Gosched()
	}
	close(hold)
	group.Wait()
	return errs
}

func isolation(b *trial) {
	own := errors.New("own")
	ok := func(i int) func(journal.Tx) error {
		return func(tx journal.Tx) error {
			return errors.Join(tx.Append("good", journal.Any, "test.good", nil), put(tx, fmt.Sprint("good", i), 1))
		}
	}
	bad := []struct {
		want error
		f    func(journal.Tx) error
	}{
		{own, func(tx journal.Tx) error {
			return errors.Join(tx.Append("bad", journal.Any, "test.bad", nil), put(tx, "bad", 1), own)
		}},
		{journal.ErrConflict, func(tx journal.Tx) error {
			if err := put(tx, "bad", 1); err != nil {
				return err
			}
			return tx.Append("bad", 7, "test.bad", nil)
		}},
		{journal.ErrConstraint, func(tx journal.Tx) error {
			if err := tx.Append("bad", journal.Any, "test.bad", nil); err != nil {
				return err
			}
			return put(tx, "bad", -1)
		}},
		{nil, func(tx journal.Tx) error { // a database error that costs an engine the batch
			if err := put(tx, "bad", 1); err != nil {
				return err
			}
			_, err := tx.Exec(`UPDATE no_such_table SET x = 1`)
			return err
		}},
		{journal.ErrConstraint, func(tx journal.Tx) error { // takes the whole transaction down where it may
			if err := put(tx, "bad", 1); err != nil {
				return err
			}
			_, err := tx.Exec(`INSERT INTO storetest_trap (x) VALUES (1)`)
			return err
		}},
	}
	var funcs []func(journal.Tx) error
	for i := range bad {
		funcs = append(funcs, ok(2*i), bad[i].f, ok(2*i+1))
	}
	for i, err := range b.together(funcs...) {
		switch i % 3 {
		case 1:
			if want := bad[i/3].want; err == nil || want != nil && !errors.Is(err, want) {
				b.Errorf("bad operation %d: got %v, want %v", i/3, err, want)
			}
		default:
			if err != nil {
				b.Errorf("good operation %d: %v", i, err)
			}
		}
	}
	if got, want := b.count(`SELECT count(*) FROM storetest_balance WHERE name LIKE 'good%'`), int64(2*len(bad)); got != want {
		b.Errorf("good rows: got %d, want %d", got, want)
	}
	if got := b.count(`SELECT count(*) FROM storetest_balance WHERE name = 'bad'`); got != 0 {
		b.Errorf("bad rows: got %d, want none", got)
	}
	if got, want := b.head(), int64(2*len(bad)); got != want {
		b.Errorf("head: got %d, want %d", got, want)
	}
	for i, e := range b.events(0) {
		if e.Position != int64(i+1) || e.Kind != "test.good" {
			b.Errorf("event %d: %+v", i, e)
		}
	}
}

func ownErrors(b *trial) {
	const n = 20
	var funcs []func(journal.Tx) error
	for i := range n {
		funcs = append(funcs, func(tx journal.Tx) error {
			if i%2 == 0 {
				return fmt.Errorf("error of %d", i)
			}
			return put(tx, fmt.Sprint("row", i), int64(i))
		})
	}
	for i, err := range b.together(funcs...) {
		switch {
		case i%2 == 0 && (err == nil || err.Error() != fmt.Sprintf("error of %d", i)):
			b.Errorf("operation %d: got %v", i, err)
		case i%2 == 1 && err != nil:
			b.Errorf("operation %d: %v", i, err)
		}
	}
}

func hiddenError(b *trial) {
	b.update(func(tx journal.Tx) error { return put(tx, "a", 1) })
	b.fails(journal.ErrConstraint, func(tx journal.Tx) error {
		_ = put(tx, "a", 2) // taken
		_ = put(tx, "b", 2)
		return nil
	})
	b.fails(journal.ErrConflict, func(tx journal.Tx) error {
		_ = tx.Append("s", 4, "test.happened", nil)
		_ = put(tx, "b", 2)
		return nil
	})
	b.fails(journal.ErrInvalid, func(tx journal.Tx) error {
		_ = tx.Append("", 0, "test.happened", nil)
		return tx.Append("s", 0, "test.happened", nil)
	})
	if got := b.count(`SELECT count(*) FROM storetest_balance WHERE name = 'b'`); got != 0 || b.head() != 0 {
		b.Errorf("after hidden errors: %d rows, head %d, want nothing", got, b.head())
	}
	b.update(func(tx journal.Tx) error { // expected conflicts are no errors
		n, err := tx.Exec(`INSERT INTO storetest_balance (name, amount) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING`, "a", 5)
		if n != 0 {
			return fmt.Errorf("rows affected: got %d, want 0", n)
		}
		return err
	})
}

func deferred(b *trial) {
	owe := func(name string) func(journal.Tx) error {
		return func(tx journal.Tx) error {
			_, err := tx.Exec(`INSERT INTO storetest_debt (name) VALUES ($1)`, name)
			return err
		}
	}
	errs := b.together(
		func(tx journal.Tx) error { return put(tx, "a", 1) },
		owe("nobody"),
		func(tx journal.Tx) error { return errors.Join(owe("b")(tx), put(tx, "b", 1)) },
	)
	if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], journal.ErrConstraint) {
		b.Errorf("got %v, want only the second to break a constraint", errs)
	}
	if got := b.count(`SELECT count(*) FROM storetest_debt`); got != 1 {
		b.Errorf("debts: got %d, want 1", got)
	}
}

func panics(b *trial) {
	raised := func() (r any) {
		defer func() { r = recover() }()
		err := b.s.Update(b.Context(), func(tx journal.Tx) error {
			if err := put(tx, "a", 1); err != nil {
				return err
			}
			panic("boom")
		})
		b.Errorf("update returned %v", err)
		return nil
	}()
	if raised != "boom" {
		b.Errorf("raised: got %v, want boom", raised)
	}
	b.append("s", 0)
	if got := b.count(`SELECT count(*) FROM storetest_balance`); got != 0 {
		b.Errorf("rows: got %d, want none", got)
	}
}

func goexit(b *trial) {
	var group sync.WaitGroup
	group.Go(func() {
		returned := true
		defer func() {
			if returned {
				b.Error("update returned")
			}
		}()
		_ = b.s.Update(b.Context(), func(tx journal.Tx) error {
			if err := put(tx, "a", 1); err != nil {
				b.Errorf("put: %v", err)
			}
			returned = false
			runtime.Goexit()
			return nil
		})
	})
	group.Wait()
	b.append("s", 0)
	if got := b.count(`SELECT count(*) FROM storetest_balance`); got != 0 {
		b.Errorf("rows: got %d, want none", got)
	}
}

func cancelledBefore(b *trial) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	never := func(journal.Tx) error { b.Error("the func ran"); return nil }
	if err := b.s.Update(ctx, never); !errors.Is(err, context.Canceled) {
		b.Errorf("update: got %v", err)
	}
	if err := b.s.View(ctx, never); !errors.Is(err, context.Canceled) {
		b.Errorf("view: got %v", err)
	}
}

func cancelledQueued(b *trial) {
	hold, held := make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		_ = b.s.Update(b.Context(), func(journal.Tx) error { close(held); <-hold; return errors.New("nothing to keep") })
	})
	<-held
	ctx, cancel := context.WithCancel(b.Context())
	group.Go(func() {
		err := b.s.Update(ctx, func(tx journal.Tx) error { return put(tx, "a", 1) })
		if !errors.Is(err, context.Canceled) {
			b.Errorf("update: got %v, want cancelled", err)
		}
		close(hold)
	})
	cancel()
	group.Wait()
	b.append("s", 0)
	if got := b.count(`SELECT count(*) FROM storetest_balance`); got != 0 {
		b.Errorf("rows: got %d, want none", got)
	}
}

func cancelledStarted(b *trial) {
	ctx, cancel := context.WithCancel(b.Context())
	err := b.s.Update(ctx, func(tx journal.Tx) error {
		cancel()
		return put(tx, "a", 1)
	})
	if err != nil {
		b.Errorf("update: %v", err)
	}
	if got := b.count(`SELECT count(*) FROM storetest_balance`); got != 1 {
		b.Errorf("rows: got %d, want 1", got)
	}
}

func view(b *trial) {
	b.append("s", 0)
	err := b.s.View(b.Context(), func(tx journal.Tx) error {
		b.append("s", 1) // committed while the view is open, before it has read
		b.update(func(tx journal.Tx) error { return put(tx, "a", 1) })
		n, err := number(tx, `SELECT count(*) FROM storetest_balance`)
		if err == nil && n != 0 {
			err = fmt.Errorf("the view sees %d rows of a later commit", n)
		}
		return err
	})
	if err != nil {
		b.Error(err)
	}
	for name, f := range map[string]func(journal.Tx) error{
		"append": func(tx journal.Tx) error { return tx.Append("s", 2, "test.happened", nil) },
		"exec":   func(tx journal.Tx) error { return put(tx, "b", 1) },
		"hidden": func(tx journal.Tx) error { _ = put(tx, "b", 1); return nil },
		"returning": func(tx journal.Tx) error {
			_, err := number(tx, `INSERT INTO storetest_balance (name, amount) VALUES ('b', 1) RETURNING amount`)
			return err
		},
	} {
		if err := b.s.View(b.Context(), f); !errors.Is(err, journal.ErrReadOnly) {
			b.Errorf("%s in a view: got %v, want read-only", name, err)
		}
	}
	if got := b.count(`SELECT count(*) FROM storetest_balance`); got != 1 || b.head() != 2 {
		b.Errorf("after views: %d rows, head %d", got, b.head())
	}
}

func viewContext(b *trial) {
	ctx, cancel := context.WithCancel(b.Context())
	err := b.s.View(ctx, func(tx journal.Tx) error {
		cancel()
		_, err := number(tx, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n`)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		b.Errorf("endless view: got %v, want cancelled", err)
	}
	b.append("s", 0)
}

func forbidden(b *trial) {
	b.append("s", 0)
	for _, query := range []string{
		`COMMIT`, `ROLLBACK`, `BEGIN`, `SAVEPOINT x`, `ROLLBACK TO operation`, `RELEASE operation`,
		`UPDATE storetest_balance SET amount = 1; COMMIT`,
		`PRAGMA synchronous = OFF`, `ATTACH 'other' AS other`, `CREATE TABLE x (y TEXT)`, `DROP TABLE storetest_balance`,
		`DELETE FROM journal_events`, `UPDATE journal_events SET kind = 'x'`,
		`INSERT INTO journal_events (position, stream, version, kind, at, body) VALUES (9, 's', 2, 'k', 0, '')`,
	} {
		for _, run := range []func(journal.Tx) error{
			func(tx journal.Tx) error { _, err := tx.Exec(query); return err },
			func(tx journal.Tx) error {
				return tx.Query(query, func(func(...any) error) error { return nil })
			},
		} {
			err := b.s.Update(b.Context(), func(tx journal.Tx) error {
				if err := put(tx, "a", 1); err != nil {
					return err
				}
				return run(tx)
			})
			if !errors.Is(err, journal.ErrInvalid) {
				b.Errorf("%s: got %v, want refused", query, err)
			}
		}
	}
	if got := b.count(`SELECT count(*) FROM storetest_balance`); got != 0 || b.head() != 1 {
		b.Errorf("after refusals: %d rows, head %d", got, b.head())
	}
}

type name string

func arguments(b *trial) {
	for _, c := range []struct {
		arg  any
		want string // read back as text
		ok   bool
	}{
		{"text", "text", true}, {name("named"), "named", true}, {int64(7), "7", true}, {8, "8", true},
		{true, "1", true}, {false, "0", true}, {nil, "", true}, {"", "", true},
		{"not\xffUTF-8", "", false}, {"nul\x00", "", false}, {1.5, "", false}, {time.Now(), "", false}, {struct{}{}, "", false},
	} {
		var got string
		err := b.s.Update(b.Context(), func(tx journal.Tx) error {
			return tx.Query(`SELECT coalesce(CAST($1 AS TEXT), '')`, func(scan func(...any) error) error { return scan(&got) }, c.arg)
		})
		if c.ok && (err != nil || got != c.want) || !c.ok && !errors.Is(err, journal.ErrInvalid) {
			b.Errorf("argument %#v: got %q, %v", c.arg, got, err)
		}
	}
	var got string // numbered, not in order of appearance
	b.update(func(tx journal.Tx) error {
		return tx.Query(`SELECT $2 || $1 || $2`, func(scan func(...any) error) error { return scan(&got) }, "a", "b")
	})
	if got != "bab" {
		b.Errorf("placeholders: got %q, want bab", got)
	}
}

func queries(b *trial) {
	b.update(func(tx journal.Tx) error { return errors.Join(put(tx, "a", 1), put(tx, "b", 2), put(tx, "c", 3)) })
	enough := errors.New("enough")
	check := func(tx journal.Tx) error {
		var names []string
		err := tx.Query(`SELECT name FROM storetest_balance ORDER BY name`, func(scan func(...any) error) error {
			var n string
			if err := scan(&n); err != nil {
				return err
			}
			if names = append(names, n); n == "b" {
				return enough
			}
			return nil
		})
		if err != enough || !slices.Equal(names, []string{"a", "b"}) {
			return fmt.Errorf("got %v and %v", names, err)
		}
		n, err := number(tx, `SELECT count(*) FROM storetest_balance`) // still usable
		if err == nil && n != 3 {
			err = fmt.Errorf("count: got %d, want 3", n)
		}
		return err
	}
	if err := b.s.View(b.Context(), check); err != nil {
		b.Errorf("view: %v", err)
	}
	b.update(check)
	nested := func(tx journal.Tx) error {
		return tx.Query(`SELECT name FROM storetest_balance`, func(func(...any) error) error {
			_, err := number(tx, `SELECT 1`)
			return err
		})
	}
	b.fails(journal.ErrInvalid, nested)
	if err := b.s.View(b.Context(), nested); !errors.Is(err, journal.ErrInvalid) {
		b.Errorf("nested in a view: got %v", err)
	}
}

func over(b *trial) {
	var kept journal.Tx
	b.update(func(tx journal.Tx) error { kept = tx; return nil })
	if err := put(kept, "late", 1); !errors.Is(err, journal.ErrInvalid) {
		b.Errorf("exec after the end: got %v", err)
	}
	if err := kept.Append("late", 0, "test.late", nil); !errors.Is(err, journal.ErrInvalid) {
		b.Errorf("append after the end: got %v", err)
	}
	if got := b.count(`SELECT count(*) FROM storetest_balance`); got != 0 || b.head() != 0 {
		b.Errorf("after the end: %d rows, head %d", got, b.head())
	}
}

func tail(b *trial) {
	const first = 600 // more than an engine reads at once
	b.update(func(tx journal.Tx) error {
		for i := range first {
			if err := tx.Append(fmt.Sprint("s/", i%7), journal.Any, "test.early", nil); err != nil {
				return err
			}
		}
		return nil
	})
	for _, after := range []int64{-1, 0, 1, 255, 256, 257, first - 1} {
		want := max(after, 0)
		for _, e := range b.events(after) {
			if want++; e.Position != want {
				b.Fatalf("after %d: got position %d, want %d", after, e.Position, want)
			}
		}
		if want != first {
			b.Errorf("after %d: ended at %d, want %d", after, want, first)
		}
	}
	// Each of several followers is woken by each commit and sees it once.
	const later = 50
	var group sync.WaitGroup
	seen := make(chan int64)
	ctx, cancel := context.WithCancel(b.Context())
	const followers = 3
	for range followers {
		group.Go(func() {
			next := int64(first + 1)
			err := b.s.Tail(ctx, first, func(e journal.Event) error {
				if e.Position != next {
					b.Errorf("follower: got position %d, want %d", e.Position, next)
				}
				next++
				seen <- e.Position
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				b.Errorf("follower: %v", err)
			}
		})
	}
	for range later {
		b.append("later", journal.Any)
		for range followers {
			<-seen
		}
	}
	cancel()
	group.Wait()
}

func tailEnds(b *trial) {
	b.append("s", 0)
	own := errors.New("own")
	if err := b.s.Tail(b.Context(), 0, func(journal.Event) error { return own }); err != own {
		b.Errorf("func's error: got %v", err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	if err := b.s.Tail(ctx, 0, func(journal.Event) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		b.Errorf("context: got %v", err)
	}
	ended, reached := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- b.s.Tail(context.Background(), 0, func(journal.Event) error { close(reached); return nil })
	}()
	<-reached
	if err := b.s.Close(); err != nil {
		b.Errorf("close: %v", err)
	}
	if err := <-ended; !errors.Is(err, journal.ErrClosed) {
		b.Errorf("close: got %v", err)
	}
}

func stream(b *trial) {
	const n = 300
	b.update(func(tx journal.Tx) error {
		for i := range n {
			if err := errors.Join(
				tx.Append("mine", int64(i), "test.mine", []byte(fmt.Sprint(i))),
				tx.Append("other", int64(i), "test.other", nil)); err != nil {
				return err
			}
		}
		return nil
	})
	for _, after := range []int64{0, 1, 255, 299, 300, 400} {
		next := after + 1
		err := b.s.Stream(b.Context(), "mine", after, func(e journal.Event) error {
			if e.Stream != "mine" || e.Version != next || string(e.Body) != fmt.Sprint(next-1) {
				return fmt.Errorf("got %s at %d, want version %d", e.Stream, e.Version, next)
			}
			next++
			return nil
		})
		if want := max(after, n); err != nil || next != want+1 {
			b.Errorf("after %d: ended before %d, want %d: %v", after, next, want+1, err)
		}
	}
	own := errors.New("own")
	if err := b.s.Stream(b.Context(), "mine", 0, func(journal.Event) error { return own }); err != own {
		b.Errorf("func's error: got %v", err)
	}
	if err := b.s.Stream(b.Context(), "none", 0, func(journal.Event) error { return own }); err != nil {
		b.Errorf("stream without events: %v", err)
	}
}

func clockBack(b *trial) {
	now := func() (t time.Time) {
		b.update(func(tx journal.Tx) error {
			t = tx.Now()
			if again := tx.Now(); !again.Equal(t) {
				return fmt.Errorf("Now moved from %v to %v inside a transaction", t, again)
			}
			return nil
		})
		return t
	}
	for _, c := range []struct{ wall, want time.Duration }{
		{0, 0}, {1500 * time.Microsecond, time.Millisecond}, {time.Hour, time.Hour}, {-time.Hour, time.Hour},
		{0, time.Hour}, {time.Hour + time.Second, time.Hour + time.Second},
	} {
		b.clock.Set(start.Add(c.wall))
		if got, want := now(), start.Add(c.want); !got.Equal(want) || got.Location() != time.UTC {
			b.Errorf("wall %v: got %v, want %v", c.wall, got, want)
		}
	}
	b.clock.Set(start)
	if err := b.s.View(b.Context(), func(tx journal.Tx) error {
		if got, want := tx.Now(), start.Add(time.Hour+time.Second); !got.Equal(want) {
			return fmt.Errorf("view: got %v, want %v", got, want)
		}
		return nil
	}); err != nil {
		b.Error(err)
	}
}

func closing(b *trial) {
	const n = 20
	hold, held := make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		if err := b.s.Update(b.Context(), func(tx journal.Tx) error { close(held); <-hold; return put(tx, "held", 1) }); err != nil {
			b.Errorf("operation under way: %v", err)
		}
	})
	<-held
	var kept, refused atomic.Int64
	for i := range n {
		group.Go(func() {
			err := b.s.Update(context.Background(), func(tx journal.Tx) error { return put(tx, fmt.Sprint(i), 1) })
			switch {
			case err == nil:
				kept.Add(1)
			case errors.Is(err, journal.ErrClosed):
				refused.Add(1)
			default:
				b.Errorf("operation %d: %v", i, err)
			}
		})
	}
	group.Go(func() {
		if err := b.s.Close(); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	close(hold)
	group.Wait()
	if kept.Load()+refused.Load() != n {
		b.Errorf("%d kept and %d refused of %d", kept.Load(), refused.Load(), n)
	}
	if err := b.s.Close(); err != nil {
		b.Errorf("closing again: %v", err)
	}
	f := func(journal.Tx) error { return nil }
	for what, err := range map[string]error{
		"update": b.s.Update(context.Background(), f),
		"view":   b.s.View(context.Background(), f),
		"tail":   b.s.Tail(context.Background(), 0, func(journal.Event) error { return nil }),
		"stream": b.s.Stream(context.Background(), "s", 0, func(journal.Event) error { return nil }),
	} {
		if !errors.Is(err, journal.ErrClosed) {
			b.Errorf("%s after close: got %v", what, err)
		}
	}
	if _, err := b.s.Head(context.Background()); !errors.Is(err, journal.ErrClosed) {
		b.Errorf("head after close: got %v", err)
	}
}
