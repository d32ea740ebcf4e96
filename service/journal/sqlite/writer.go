package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	codes "modernc.org/sqlite/lib"

	"inband/failpoint"
	"inband/service/journal"
)

// errUnwound is the result of a func that did not return: it panicked, or its
// goroutine ended. Nobody waits for it any more.
var errUnwound = errors.New("the func did not return")

// operation is one Update on its way through the writer. The func runs in its
// caller's goroutine, when the writer gives it the turn, so that a panic, or a test's
// FailNow, unwinds the caller and leaves the writer alone.
type operation struct {
	urgent  bool
	state   atomic.Int32
	turn    chan *writeTx // the writer's invitation; unbuffered
	played  chan error    // what the func returned; buffered, so nobody waits to say it
	outcome chan error    // what the caller is told; buffered likewise
}

// An operation is queued until either its caller withdraws it or the writer takes it.
const (
	queued int32 = iota
	taken
	withdrawn
)

func newOperation() *operation {
	return &operation{turn: make(chan *writeTx), played: make(chan error, 1), outcome: make(chan error, 1)}
}

// follow plays f whenever it is the operation's turn, until its outcome is known.
// ctx ends the wait only while the operation is queued.
func (o *operation) follow(ctx context.Context, stopped <-chan struct{}, f func(journal.Tx) error) error {
	ended := ctx.Done()
	for {
		select {
		case tx := <-o.turn:
			o.play(tx, f)
		case err := <-o.outcome:
			return err
		case <-ended:
			if o.state.CompareAndSwap(queued, withdrawn) {
				return fmt.Errorf("journal update not begun: %w", context.Cause(ctx))
			}
			ended = nil
		case <-stopped:
			select {
			case err := <-o.outcome:
				return err
			default: // the writer never took it
				return journal.ErrClosed
			}
		}
	}
}

func (o *operation) play(tx *writeTx, f func(journal.Tx) error) {
	result := errUnwound
	defer func() {
		// An error that the func hides still counts: PostgreSQL could not
		// commit after it, and SQLite may have lost what came before it.
		if result == nil {
			result = tx.err
		}
		tx.end()
		o.played <- result
	}()
	result = f(tx)
}

// writer owns the database's one writing connection. It takes the operations that
// wait, runs them one after the other in one transaction with a savepoint each, and
// tells nobody anything before that transaction is durable: an error, too, may rest
// on what another operation of the batch wrote.
type writer struct {
	c        *writeConn
	clock    *clock
	log      *slog.Logger
	queue    chan *operation
	urgent   chan *operation // those of the queue's that go first
	maxBatch int
	closing  <-chan struct{}
	stopped  chan struct{}
	notify   func(head int64, events []journal.Event) // called after each commit, with what it added

	wal      walLog
	endViews func(age time.Duration, size int64) int // takes the snapshots of Views away

	commit func() error // COMMIT; a test puts its own faults here

	head    int64 // last committed position
	commits int64 // number of the last commit

	broken atomic.Pointer[error] // why no more is written, once a commit's outcome is unknown
	full   atomic.Bool           // the last write that was tried found no room
}

// run is the writer's goroutine. When the store closes, it finishes what is queued.
func (w *writer) run() {
	defer close(w.stopped)
	defer w.wal.again.Stop()
	for {
		select {
		case o := <-w.urgent:
			w.serve(o)
		case o := <-w.queue:
			w.serve(o)
		case <-w.wal.again.C:
			w.tend(true)
		case <-w.closing:
			for {
				select {
				case o := <-w.urgent:
					w.serve(o)
				case o := <-w.queue:
					w.serve(o)
				default:
					return
				}
			}
		}
	}
}

// serve runs first and whatever waits beside it. The transaction is begun before it is known
// who will be in it: when another program has the database, who is urgent and comes during
// the wait is still among the first, and who has enough of it may still leave.
func (w *writer) serve(first *operation) {
	err := w.begin()
	batch := w.gather(first)
	switch {
	case err != nil:
		w.tell(batch, err)
	case len(batch) == 0: // all have left
		w.rollback()
	default:
		for _, o := range w.attempt(batch) {
			// Another one's fault has undone it: now it is in a transaction of its own.
			if err := w.begin(); err != nil {
				w.tell([]*operation{o}, err)
				continue
			}
			w.attempt([]*operation{o})
		}
	}
	w.tend(false)
}

// begin begins a transaction that can write, and waits for other programs, for a while.
func (w *writer) begin() error {
	if why := w.broken.Load(); why != nil {
		return *why
	}
	if _, err := w.c.exec("BEGIN IMMEDIATE"); err != nil {
		w.rollback()
		return fmt.Errorf("begin: %w", err)
	}
	return nil
}

// gather takes the operations that wait, up to a batch, the urgent ones first. After a
// commit all its callers wake at once and many come back at once, so it lets them run, for
// as long as that brings more: a commit costs far more than a yield. A few places are kept
// from the urgent ones, so that they cannot keep all others out for ever.
func (w *writer) gather(first *operation) []*operation {
	const share = 16 // one place in so many is for what is not urgent
	var urgent, ordinary []*operation
	take := func(o *operation) {
		switch {
		case !o.state.CompareAndSwap(queued, taken): // withdrawn
		case o.urgent:
			urgent = append(urgent, o)
		default:
			ordinary = append(ordinary, o)
		}
	}
	take(first)
	for idle := 0; len(urgent)+len(ordinary) < w.maxBatch && idle < 2; {
		var hurried chan *operation // nil, from which nothing comes
		if len(urgent) < w.maxBatch-w.maxBatch/share {
			hurried = w.urgent
		}
		select {
		case o := <-hurried:
			take(o)
			idle = 0
			continue
		default:
		}
		select {
		case o := <-w.queue:
			take(o)
			idle = 0
		default:
			runtime.Gosched()
			idle++
		}
	}
	return append(urgent, ordinary...)
}

// attempt runs operations in the transaction that has begun, and ends it. It tells each its
// outcome, except for those that it returns, which left no trace and may run again; with a
// batch of one there are none.
func (w *writer) attempt(batch []*operation) (again []*operation) {
	results := make([]error, len(batch))
	head, kept := w.head, 0
	var events []journal.Event
	for i, o := range batch {
		added, result, intact := w.step(o, head)
		if !intact {
			w.rollback()
			w.tell(batch[i:i+1], result)
			return append(returned(batch[:i], results[:i]), batch[i+1:]...)
		}
		if results[i] = result; result == nil {
			head += int64(len(added))
			events = append(events, added...)
			kept++
		}
	}
	if kept > 0 {
		if err := w.seal(head, events); err != nil {
			if len(batch) > 1 && !errors.Is(err, journal.ErrUnknownCommit) {
				return returned(batch, results)
			}
			w.tell(batch, err) // what failed by itself may have failed over what is now unknown
			return nil
		}
	} else {
		w.rollback()
	}
	for i, o := range batch {
		o.outcome <- results[i]
	}
	return nil
}

// returned keeps the operations whose func returned: one that panicked has nobody
// left to run it again.
func returned(batch []*operation, results []error) []*operation {
	var kept []*operation
	for i, o := range batch {
		if results[i] != errUnwound {
			kept = append(kept, o)
		}
	}
	return kept
}

func (w *writer) tell(batch []*operation, err error) {
	if errors.Is(err, journal.ErrFull) {
		w.full.Store(true)
	}
	for _, o := range batch {
		o.outcome <- err
	}
}

// step gives one operation its turn between savepoints. intact is false when the
// transaction is lost: after any database error but a violated constraint, and when
// the savepoint is gone, since then SQLite has rolled back and the next savepoint
// would be a transaction of its own.
func (w *writer) step(o *operation, head int64) (added []journal.Event, result error, intact bool) {
	if _, err := w.c.exec("SAVEPOINT operation"); err != nil {
		return nil, err, false
	}
	tx := &writeTx{guard: guard{now: w.clock.now()}, c: w.c, head: head}
	o.turn <- tx
	result = <-o.played
	if result == nil {
		if _, err := w.c.exec("RELEASE operation"); err != nil {
			return nil, err, false
		}
		return tx.events, nil, true
	}
	if tx.lost {
		return nil, result, false
	}
	if _, err := w.c.exec("ROLLBACK TO operation"); err != nil {
		return nil, result, false
	}
	if _, err := w.c.exec("RELEASE operation"); err != nil {
		return nil, result, false
	}
	return nil, result, true
}

// rollback ends whatever transaction is open. Its error says nothing that the next
// BEGIN, which cannot succeed inside a transaction, would not say better.
func (w *writer) rollback() { _, _ = w.c.exec("ROLLBACK") }

// seal writes the state row and commits what added events up to head. An error that is not ErrUnknownCommit means
// that nothing remains.
func (w *writer) seal(head int64, events []journal.Event) error {
	number := w.commits + 1
	if err := w.mark(number, head); err != nil {
		w.rollback()
		return err
	}
	failpoint.Here("journal.before-commit")
	if err := w.commit(); err != nil {
		if err = w.settle(number, err); err != nil {
			return err
		}
	}
	failpoint.Here("journal.after-commit")
	w.full.Store(false)
	w.commits, w.head = max(w.commits, number), head
	w.notify(head, events)
	return nil
}

func (w *writer) mark(number, head int64) error {
	_, err := w.c.exec(`UPDATE journal_state SET clock = $1, commits = $2, head = $3 WHERE one = 1`, w.clock.highWater(), number, head)
	return err
}

// settle finds out what an unsuccessful COMMIT has left: nil if the commit holds
// after all, its cause if nothing of it remains.
//
// Reading the state row is not enough for "nothing remains". A commit whose frames
// reached the write-ahead log, but whose sync or index update failed, is invisible
// now and would be replayed after a crash. One more commit goes to the same place of
// the log, so once that is durable the doubtful one is gone for good, or confirmed.
// Only a full disk needs no such proof: the frame that would make the transaction
// count was never written whole. Neither do errors from before the writing.
func (w *writer) settle(number int64, cause error) error {
	w.rollback()
	cause = fmt.Errorf("commit: %w", cause)
	_, err := w.c.exec("BEGIN IMMEDIATE")
	if err != nil {
		return w.stop(cause, err)
	}
	found, err := w.c.integer(`SELECT commits FROM journal_state WHERE one = 1`)
	if err != nil {
		w.rollback()
		return w.stop(cause, err)
	}
	if found != number {
		switch primary(cause) {
		case codes.SQLITE_FULL, codes.SQLITE_CONSTRAINT, codes.SQLITE_BUSY:
			w.rollback()
			return cause
		}
	}
	head, err := w.c.integer(`SELECT head FROM journal_state WHERE one = 1`)
	if err == nil {
		err = w.mark(number+1, head)
	}
	if err == nil {
		err = w.commit()
	}
	if err != nil {
		w.rollback()
		return w.stop(cause, err)
	}
	w.commits = number + 1
	if found == number {
		w.log.Warn("journal commit reported an error and holds", "commit", number, "err", cause)
		return nil
	}
	return cause
}

// stop ends all writing: what came after a guess would rest on it.
func (w *writer) stop(cause, doubt error) error {
	why := fmt.Errorf("%w: it takes no writes since a commit's outcome is unknown (%w); restart to find out", journal.ErrClosed, cause)
	w.broken.Store(&why)
	w.log.Error("journal commit outcome unknown, writing stops", "err", cause, "then", doubt)
	return fmt.Errorf("%w: %w; then: %w", journal.ErrUnknownCommit, cause, doubt)
}
