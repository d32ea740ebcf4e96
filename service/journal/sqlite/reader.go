package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"inband/service/journal"
)

// unbounded is a read that may last as long as it takes.
const unbounded = time.Duration(0)

// reading is a read under way, which may hold a snapshot.
type reading struct {
	since time.Time
	end   func(error) // nil for an unbounded one, which only its ctx ends
}

// read runs f with a context that also ends when the store closes or after most, and turns
// such an end into ErrClosed or ErrTooLong.
func (s *Store) read(ctx context.Context, most time.Duration, f func(context.Context) error) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return journal.ErrClosed
	}
	s.reading.Add(1)
	s.mu.Unlock()
	defer s.reading.Done()

	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(journal.ErrClosed) })()

	var err error
	select {
	case s.readers.slots <- struct{}{}:
		err = s.count(most, cancel, func() error { return f(inner) })
		<-s.readers.slots
	case <-inner.Done():
		err = inner.Err()
	}
	if why := context.Cause(inner); err != nil && ctx.Err() == nil &&
		(errors.Is(why, journal.ErrClosed) || errors.Is(why, journal.ErrTooLong)) {
		return why
	}
	return err
}

// count runs f as a read that has begun, and has it ended after most.
func (s *Store) count(most time.Duration, cancel context.CancelCauseFunc, f func() error) error {
	r := &reading{since: time.Now()}
	if most != unbounded {
		r.end = cancel
		defer time.AfterFunc(most, func() {
			s.endView(r, fmt.Errorf("%w: it was ended after %v; what is much is read in parts", journal.ErrTooLong, most))
		}).Stop()
	}
	s.mu.Lock()
	s.reads[r] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.reads, r)
		s.mu.Unlock()
	}()
	return f()
}

// endView takes a View's snapshot away, wherever its func is, unless it is over or that was
// done before.
func (s *Store) endView(r *reading, why error) {
	s.mu.Lock()
	_, there := s.reads[r]
	end := r.end
	if there && end != nil {
		r.end = nil
		s.tooLong++
	}
	s.mu.Unlock()
	if there && end != nil {
		end(why)
	}
}

// endViews ends the Views that have lasted for at least age, because of a log of size bytes,
// and returns how many there were.
func (s *Store) endViews(age time.Duration, size int64) int {
	s.mu.Lock()
	var old []*reading
	for r := range s.reads {
		if r.end != nil && time.Since(r.since) >= age {
			old = append(old, r)
		}
	}
	s.mu.Unlock()
	for _, r := range old {
		s.endView(r, fmt.Errorf("%w: the log beside the journal has grown to %d KiB and could not be emptied for it; what is much is read in parts",
			journal.ErrTooLong, size>>10))
	}
	return len(old)
}

// Load is what weighs on a store at one moment.
type Load struct {
	Log        int64         // bytes of the log beside the database file
	OldestRead time.Duration // how long the longest read under way, a Backup too, has lasted; 0 for none
	TooLong    int64         // Views that were ended with ErrTooLong since the store was opened
}

// Load returns what weighs on the store now.
func (s *Store) Load() Load {
	l := Load{Log: s.writer.wal.size()}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.TooLong = s.tooLong
	for r := range s.reads {
		l.OldestRead = max(l.OldestRead, time.Since(r.since))
	}
	return l
}

// View implements journal.Store. Close waits for f, whose queries it ends. After
// Config.MaxView, or before it when the log has grown too much, the snapshot is taken away,
// also when f does something else meanwhile. A query is ended while it looks for its first
// row or between two.
func (s *Store) View(ctx context.Context, f func(journal.Tx) error) error {
	return s.read(ctx, s.maxView, func(ctx context.Context) error {
		tx, err := s.readers.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return fmt.Errorf("begin view: %w", scarce(translate(err)))
		}
		defer tx.Rollback()
		// SQLite takes the snapshot at the first read, which is f's to delay.
		var commits int64
		const pin = `SELECT commits FROM journal_state`
		t := &readTx{guard: guard{now: s.clock.now()}, ctx: ctx, tx: tx, pool: s.readers}
		if err := t.Query(pin, func(scan func(...any) error) error { return scan(&commits) }); err != nil {
			return scarce(err)
		}
		defer t.end()
		if err := f(t); err != nil {
			return err
		}
		return t.err
	})
}

// Head implements journal.Store.
func (s *Store) Head(ctx context.Context) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, journal.ErrClosed
	}
	return s.head, nil
}

// eventsAfter is the page of a Tail: $1 is the position before it, $2 its size.
const eventsAfter = `SELECT position, stream, version, kind, at, body FROM journal_events WHERE position > $1 ORDER BY position LIMIT $2`

// Tail implements journal.Store. It reads page by page, so that a slow f holds no
// snapshot, and between pages waits for the writer's word.
func (s *Store) Tail(ctx context.Context, after int64, f func(journal.Event) error) error {
	for {
		s.mu.Lock()
		grown := s.grown
		page, kept := s.recent.after(after)
		s.mu.Unlock()
		if !kept {
			var err error
			if page, err = s.page(ctx, eventsAfter, after); err != nil {
				return err
			}
		}
		for _, e := range page {
			if err := s.deliver(ctx, e, f); err != nil {
				return err
			}
			after = e.Position
		}
		if len(page) > 0 {
			continue
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.life.Done():
			return journal.ErrClosed
		}
	}
}

// Stream implements journal.Store.
func (s *Store) Stream(ctx context.Context, stream string, after int64, f func(journal.Event) error) error {
	last, err := s.version(ctx, stream)
	if err != nil {
		return err
	}
	for after < last {
		page, err := s.page(ctx, `SELECT position, stream, version, kind, at, body FROM journal_events WHERE version > $1 AND version <= $3 AND stream = $4 ORDER BY version LIMIT $2`, after, last, stream)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return fmt.Errorf("%w: stream %q ends at version %d, before its last, %d", journal.ErrCorrupt, stream, after, last)
		}
		for _, e := range page {
			if err := s.deliver(ctx, e, f); err != nil {
				return err
			}
			after = e.Version
		}
	}
	return nil
}

// version is the committed version of a stream.
func (s *Store) version(ctx context.Context, stream string) (version int64, err error) {
	err = s.read(ctx, s.maxView, func(ctx context.Context) error {
		const query = `SELECT coalesce(max(version), 0) FROM journal_events WHERE stream = $1`
		return database(query, s.readers.db.QueryRowContext(ctx, query, stream).Scan(&version))
	})
	return version, err
}

// deliver hands over an event unless the reader or the store has ended meanwhile.
func (s *Store) deliver(ctx context.Context, e journal.Event, f func(journal.Event) error) error {
	select {
	case <-s.life.Done():
		return journal.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	default:
		return f(e)
	}
}

// page reads the next events, bounded in number and in bytes.
func (s *Store) page(ctx context.Context, query string, after int64, more ...any) (page []journal.Event, err error) {
	err = s.read(ctx, s.maxView, func(ctx context.Context) error {
		rows, err := s.readers.db.QueryContext(ctx, query, append([]any{after, pageEvents}, more...)...)
		if err != nil {
			return database(query, err)
		}
		defer rows.Close()
		bytes := 0
		for bytes < pageBytes && rows.Next() {
			var e journal.Event
			var at int64
			if err := rows.Scan(&e.Position, &e.Stream, &e.Version, &e.Kind, &at, &e.Body); err != nil {
				return database(query, err)
			}
			e.At = time.UnixMilli(at).UTC()
			if e.Body == nil {
				e.Body = []byte{}
			}
			bytes += len(e.Body)
			page = append(page, e)
		}
		return database(query, rows.Err())
	})
	return page, err
}

// readPool is the connections for reading, with prepared statements: database/sql
// prepares one once on each connection that runs it.
type readPool struct {
	db *sql.DB // one connection more than slots, so that preparing never waits for a View
	// slots bounds the reads at a time.
	slots chan struct{}

	mu         sync.Mutex
	statements map[string]*sql.Stmt
}

func newReadPool(dsn string, reads int) *readPool {
	return &readPool{db: openPool(dsn, reads+1), slots: make(chan struct{}, reads), statements: map[string]*sql.Stmt{}}
}

func (p *readPool) close() error { return p.db.Close() }

// query runs a query in tx, prepared if there is room to keep the statement: features
// use a fixed set.
func (p *readPool) query(ctx context.Context, tx *sql.Tx, query string, args ...any) (*sql.Rows, error) {
	s, err := p.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return tx.QueryContext(ctx, query, args...)
	}
	return tx.StmtContext(ctx, s).QueryContext(ctx, args...)
}

// prepare returns the prepared statement of query, nil when too many are kept.
func (p *readPool) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.statements[query]; s != nil || len(p.statements) >= maxStatements {
		return s, nil
	}
	s, err := p.db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	p.statements[query] = s
	return s, nil
}
