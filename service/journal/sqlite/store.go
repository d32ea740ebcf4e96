package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/service/journal"
)

const (
	// applicationID marks a SQLite file as an Inband journal ("InbJ").
	applicationID = 0x496e624a

	// busyTimeout bounds the wait for another program's lock, say a shell's.
	busyTimeout = 5 * time.Second

	// alwaysCheck is the size up to which every start reads the whole database
	// for damage. A larger one is read only after an unclean end.
	alwaysCheck = 64 << 20 // bytes

	// A page of a Tail or Stream ends at either bound, the second after the
	// event that crosses it.
	pageEvents = 256
	pageBytes  = 1 << 20
)

// Config says where the store is and how it behaves. Only Path is required.
type Config struct {
	Path    string           // the database file; its folder must exist
	Schemas []journal.Schema // every feature's tables, in the order of migration
	Logger  *slog.Logger     // nil: silent
	Clock   func() time.Time // nil: time.Now

	MaxBatch int           // operations a commit, default 64; 1 gives each its own
	Queue    int           // operations that wait before Update blocks, default 1024, and as many urgent ones
	Readers  int           // Views at a time, default 4; more wait
	MaxView  time.Duration // how long a View may last before it is ErrTooLong, default a minute
	MaxLog   int64         // bytes that the log may have, default 64 MiB; see the package's Log
	MaxBytes int64         // size of the database file beyond which writes are ErrFull; 0: the disk's end
}

func (c Config) withDefaults() (Config, error) {
	if c.Path == "" {
		return c, fmt.Errorf("open journal: %w: no path", journal.ErrInvalid)
	}
	if c.MaxBatch < 0 || c.Queue < 0 || c.Readers < 0 || c.MaxBytes < 0 || c.MaxLog < 0 || c.MaxView < 0 {
		return c, fmt.Errorf("open journal %s: %w: a negative bound", c.Path, journal.ErrInvalid)
	}
	path, err := filepath.Abs(c.Path)
	if err != nil {
		return c, fmt.Errorf("open journal %s: %w", c.Path, err)
	}
	c.Path = path
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	c.MaxBatch = defaultTo(c.MaxBatch, 64)
	c.Queue = defaultTo(c.Queue, 1024)
	c.Readers = defaultTo(c.Readers, 4)
	c.MaxView = cmp.Or(c.MaxView, time.Minute)
	c.MaxLog = cmp.Or(c.MaxLog, 64<<20)
	return c, nil
}

func defaultTo(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// Store is an open journal. Make one with Open, end it with Close.
type Store struct {
	path    string
	boot    journal.BootID
	log     *slog.Logger
	clock   *clock
	writer  *writer
	readers *readPool
	maxView time.Duration  // 0: a View may last
	release []func() error // what Open has opened, undone from the end

	life      context.Context // ends when Close begins
	end       context.CancelFunc
	closeOnce sync.Once
	closeErr  error

	mu      sync.Mutex
	closed  bool
	reading sync.WaitGroup        // reads under way; added to only while not closed
	reads   map[*reading]struct{} // those that have begun
	tooLong int64                 // Views that were ended
	head    int64                 // last committed position
	recent  recent                // the events up to it
	grown   chan struct{}         // closed and replaced when head moves
}

var _ journal.Store = (*Store)(nil)

// Open takes the ownership of the database, checks it, brings its tables up to date
// and starts the writer. Its errors wrap ErrOwned, ErrCorrupt, ErrNewerSchema, ErrFull
// or ErrInvalid of package journal, or come from the file system. ctx bounds the
// opening only.
func Open(ctx context.Context, config Config) (*Store, error) {
	c, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		path:  c.Path,
		boot:  journal.BootID(ulid.Make().String()),
		log:   c.Logger,
		clock: &clock{wall: c.Clock},
		grown: make(chan struct{}),
		reads: make(map[*reading]struct{}),
	}
	s.maxView = c.MaxView
	s.life, s.end = context.WithCancel(context.Background())
	if err := s.open(ctx, c); err != nil {
		s.end()
		_ = s.undo()                          // err is why
		if errors.Is(err, journal.ErrOwned) { // says all of it already
			return nil, err
		}
		return nil, fmt.Errorf("open journal %s: %w", c.Path, err)
	}
	go s.writer.run()
	return s, nil
}

// undo gives back what has been opened, the last first.
func (s *Store) undo() error {
	var errs []error
	for i := len(s.release) - 1; i >= 0; i-- {
		errs = append(errs, s.release[i]())
	}
	s.release = nil
	return errors.Join(errs...)
}

func (s *Store) opened(release func() error) { s.release = append(s.release, release) }

func (s *Store) open(ctx context.Context, c Config) error {
	lock, err := lockFile(c.Path, owner{PID: os.Getpid(), Since: c.Clock().UTC(), Boot: s.boot})
	if err != nil {
		return err
	}
	s.opened(lock.release)

	fresh, err := inspectFiles(c.Path)
	if err != nil {
		return err
	}
	if fresh {
		if err := createFile(c.Path); err != nil {
			return err
		}
	}
	// What a savepoint may have to undo is kept in memory: a batch is bounded, and beyond
	// 64 KiB SQLite would write a temporary file for it, which was a tenth of its time.
	db := openPool(dsn(c.Path, "rw", fmt.Sprintf("journal_size_limit(%d)", c.MaxLog/8), "temp_store(MEMORY)"), 1)
	s.opened(db.Close)
	if err := prepareDatabase(ctx, db, c); err != nil {
		return err
	}
	conn, err := newWriteConn(ctx, db)
	if err != nil {
		return err
	}
	s.opened(conn.close)

	s.readers = newReadPool(dsn(c.Path, "ro"), c.Readers)
	s.opened(s.readers.close)
	if err := s.readers.db.PingContext(ctx); err != nil {
		return translate(err)
	}
	s.writer = &writer{
		c: conn, clock: s.clock, log: s.log, maxBatch: c.MaxBatch,
		queue: make(chan *operation, c.Queue), urgent: make(chan *operation, c.Queue),
		closing: s.life.Done(), stopped: make(chan struct{}), notify: s.advance,
		wal: walLog{path: c.Path + "-wal", most: c.MaxLog, again: time.NewTimer(tendAgain)}, endViews: s.endViews,
	}
	s.writer.commit = func() error { _, err := conn.exec("COMMIT"); return err }
	return s.resume()
}

// resume takes up where the last boot ended and records this one.
func (s *Store) resume() error {
	w := s.writer
	var high, last int64
	for _, read := range []struct {
		into *int64
		sql  string
	}{
		{&high, `SELECT clock FROM journal_state WHERE one = 1`},
		{&w.commits, `SELECT commits FROM journal_state WHERE one = 1`},
		{&w.head, `SELECT head FROM journal_state WHERE one = 1`},
		{&last, `SELECT coalesce(max(position), 0) FROM journal_events`},
	} {
		n, err := w.c.integer(read.sql)
		if err != nil {
			return err
		}
		*read.into = n
	}
	if last != w.head {
		return corrupt(fmt.Sprintf("its last event is at position %d and its state says %d", last, w.head))
	}
	s.head = w.head
	s.clock.last = high
	if wall := s.clock.wall().UnixMilli(); wall < high-1000 {
		s.log.Warn("wall clock is behind the journal's, which waits for it", "path", s.path, "behind", time.Duration(high-wall)*time.Millisecond)
	}
	now := s.clock.now().UnixMilli()
	return w.alone(func() error {
		if _, err := w.c.exec(`UPDATE journal_boots SET ended = $1, how = 'lost' WHERE ended IS NULL`, now); err != nil {
			return err
		}
		_, err := w.c.exec(`INSERT INTO journal_boots (id, pid, started) VALUES ($1, $2, $3)`, string(s.boot), os.Getpid(), now)
		return err
	})
}

// alone commits the store's own bookkeeping while the writer's goroutine does not run.
func (w *writer) alone(f func() error) error {
	if _, err := w.c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := f(); err != nil {
		w.rollback()
		return err
	}
	return w.seal(w.head, nil)
}

// Boot implements journal.Store. With one owner at a time, every other boot is gone.
func (s *Store) Boot() journal.BootID { return s.boot }

// Err says why the store takes no writes: nil while it does, ErrFull when the last
// one that was tried found no room, ErrClosed with the cause after a commit whose
// outcome is unknown. Room is noticed by the next write, even one of nothing.
func (s *Store) Err() error {
	if why := s.writer.broken.Load(); why != nil {
		return *why
	}
	select {
	case <-s.life.Done():
		return journal.ErrClosed
	default:
	}
	if s.writer.full.Load() {
		return journal.ErrFull
	}
	return nil
}

// Update implements journal.Store. When Config.Queue operations wait already, it
// waits for room, bounded by ctx; so it does with the urgent ones, which wait apart.
func (s *Store) Update(ctx context.Context, f func(journal.Tx) error) error {
	select { // with several ready, the select below would choose at random
	case <-s.life.Done():
		return journal.ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("journal update not begun: %w", context.Cause(ctx))
	default:
	}
	o, queue := newOperation(), s.writer.queue
	if journal.IsUrgent(ctx) {
		o.urgent, queue = true, s.writer.urgent
	}
	select {
	case queue <- o:
		return o.follow(ctx, s.writer.stopped, f)
	case <-s.life.Done():
		return journal.ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("journal update not begun: %w", context.Cause(ctx))
	}
}

// advance tells the Tails that the head has moved, and with which events.
func (s *Store) advance(head int64, events []journal.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if head > s.head {
		s.head = head
		s.recent.add(events)
		close(s.grown)
		s.grown = make(chan struct{})
	}
}

// Close implements journal.Store. It waits for the operations that are queued and for
// the Views under way, moves the log into the database file, and releases the lock.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Store) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	<-s.writer.stopped
	s.reading.Wait()

	var errs []error
	if s.writer.broken.Load() == nil {
		errs = append(errs, s.bid())
	}
	errs = append(errs, s.undo())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close journal %s: %w", s.path, err)
	}
	return nil
}

// bid records the end of this boot and empties the log.
func (s *Store) bid() error {
	now := s.clock.now().UnixMilli()
	err := s.writer.alone(func() error {
		_, err := s.writer.c.exec(`UPDATE journal_boots SET ended = $1, how = 'closed' WHERE id = $2`, now, string(s.boot))
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.writer.c.exec("PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}
