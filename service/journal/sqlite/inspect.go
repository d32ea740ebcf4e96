package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"inband/service/journal"
)

// Events calls f with each event after a position, in order, and returns nil after the
// last that is there when it gets so far. Unlike Tail it does not wait for more.
func (s *Store) Events(ctx context.Context, after int64, f func(journal.Event) error) error {
	for {
		page, err := s.page(ctx, eventsAfter, after)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, e := range page {
			if err := s.deliver(ctx, e, f); err != nil {
				return err
			}
			after = e.Position
		}
	}
}

// Inspection is a journal that nobody owns, opened to be looked at. No migration runs,
// no boot is recorded, and no row can be written.
type Inspection struct{ s *Store }

// Inspect opens the journal at path for reading. Its errors are those of Open: ErrOwned
// while a gateway runs, ErrCorrupt when SQLite's own check, of every index too, finds
// damage. Whether the events are those that once were written is another matter. The
// caller closes it. ctx bounds the opening only.
func Inspect(ctx context.Context, path string) (*Inspection, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("inspect journal %s: %w", path, err)
	}
	s := &Store{path: path, clock: &clock{wall: time.Now}, grown: make(chan struct{}), reads: make(map[*reading]struct{})}
	s.life, s.end = context.WithCancel(context.Background())
	if err := s.inspect(ctx); err != nil {
		s.end()
		_ = s.undo() // err is why
		return nil, fmt.Errorf("inspect journal %s: %w", path, err)
	}
	return &Inspection{s}, nil
}

func (s *Store) inspect(ctx context.Context) error {
	if _, err := os.Stat(s.path); err != nil { // before a lock file is made for it
		return err
	}
	lock, err := lockFile(s.path, owner{PID: os.Getpid(), Since: time.Now().UTC()})
	if err != nil {
		return err
	}
	s.opened(lock.release)
	if _, err := inspectFiles(s.path); err != nil {
		return err
	}
	// Not mode "ro": what a crash has left in the log must be read too, and for that
	// SQLite makes an index beside it.
	s.readers = newReadPool(dsn(s.path, "rw", "query_only(1)"), 1)
	s.opened(s.readers.close)
	id, err := pragma(ctx, s.readers.db, "PRAGMA application_id")
	if err != nil {
		return damaged(err)
	}
	if id != applicationID {
		return corrupt("it is not a journal of this program")
	}
	const most = 5
	found, err := column[string](ctx, s.readers.db, fmt.Sprintf("PRAGMA integrity_check(%d)", most))
	if err != nil {
		return damaged(err)
	}
	if len(found) != 1 || found[0] != "ok" {
		return corrupt("SQLite's check found: " + shorten(strings.Join(found, "; ")))
	}
	return nil
}

// View is Store.View.
func (i *Inspection) View(ctx context.Context, f func(journal.Tx) error) error {
	return i.s.View(ctx, f)
}

// Events is Store.Events.
func (i *Inspection) Events(ctx context.Context, after int64, f func(journal.Event) error) error {
	return i.s.Events(ctx, after, f)
}

// Head is the last position that the journal says it has given.
func (i *Inspection) Head(ctx context.Context) (int64, error) {
	return pragma(ctx, i.s.readers.db, `SELECT head FROM journal_state WHERE one = 1`)
}

// Close gives the journal back.
func (i *Inspection) Close() error {
	i.s.mu.Lock()
	i.s.closed = true
	i.s.mu.Unlock()
	i.s.end()
	i.s.reading.Wait()
	return i.s.undo()
}
