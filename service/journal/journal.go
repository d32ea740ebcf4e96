package journal

import (
	"context"
	"io/fs"
	"time"
)

// Bounds that every engine enforces, so that what one accepts the other does too.
const (
	MaxBody   = 4 << 20 // bytes of an event's body; more belongs into an artifact
	MaxStream = 512     // bytes of a stream's name
	MaxKind   = 128     // bytes of an event's kind
)

// Any as the expected version of an Append accepts whatever version the stream has.
const Any int64 = -1

// Event is one thing that happened. It never changes once it is committed.
type Event struct {
	Position int64     // place in the order over all streams, from 1
	Stream   string    // what it happened to, for example "call/01J…"
	Version  int64     // place in its stream, from 1, without gaps
	Kind     string    // what happened, for example "call.received"
	At       time.Time // the store's clock when it was appended, UTC, milliseconds
	Body     []byte    // up to MaxBody bytes, the feature's own form; never nil in a Tail
}

// BootID identifies one ownership of a store, from open to close or crash. It is a
// ULID, so later boots sort after earlier ones.
type BootID string

// Tx is one transaction, valid until the func that got it returns and only in the
// goroutine of that func.
//
// SQL is portable: placeholders $1, $2, …; columns TEXT, BIGINT and BLOB; arguments
// string, int64, int, bool (stored as 0 or 1), []byte and nil. Tables of the journal
// itself begin with "journal_" and are not a feature's to touch. A conflict that is
// expected is written as ON CONFLICT …, and seen in the rows affected: after an error
// of Append, Exec or Query the transaction cannot commit, and Update returns that
// error even if the func hides it.
type Tx interface {
	// Now is the store's clock: the wall clock in UTC, cut to milliseconds, held so
	// that it never runs back in a boot, nor in a later one behind what a committed
	// transaction has seen. It stands still within one Tx.
	Now() time.Time

	// Append adds an event to the end of a stream. expect is the version that the
	// stream has now: 0 for one that does not exist yet, Any for whatever it is.
	// Another version is ErrConflict. A name that is empty, too long, not UTF-8 or
	// holds a control character, and a body over MaxBody, are ErrInvalid.
	Append(stream string, expect int64, kind string, body []byte) error

	// Exec runs one statement that writes and returns the number of rows affected.
	// A violated constraint is ErrConstraint. Statements that begin or end a
	// transaction are refused.
	Exec(sql string, args ...any) (int64, error)

	// Query calls row for each row of a result, in order; an error from row ends
	// the reading and is returned as it is. row must not use the Tx.
	Query(sql string, row func(scan func(...any) error) error, args ...any) error
}

// Store is one journal with its projections. Its methods may be called from any
// number of goroutines.
type Store interface {
	// Update runs f in a transaction and returns once its outcome is known: nil
	// when all of it is durable, an error when none of it remains. f may run
	// again, so it must have no effect but through its Tx and variables that it
	// sets anew each time; and it must not call the store, which would wait for
	// itself. It is run while others wait: computing belongs before it.
	//
	// ctx bounds the wait for f to begin. Once f has begun, the outcome is
	// waited for whatever becomes of ctx, because "cancelled" would be a lie
	// about a row that stays. A panic in f is raised again in the caller, with
	// nothing written. With a ctx of [Urgent], f is begun before others that wait.
	Update(ctx context.Context, f func(Tx) error) error

	// View runs f on a snapshot of what was committed when it began. Append and
	// Exec return ErrReadOnly. ctx also ends the queries of f. f must not open
	// another View, of which there is a bounded number at a time. A snapshot cannot
	// be kept for ever: one that has got too old for the engine is taken away, and
	// queries of f and then View return ErrTooLong.
	View(ctx context.Context, f func(Tx) error) error

	// Tail calls f with each event after a position, in order: first those that
	// exist, then others as they are committed. It returns f's error, ctx's
	// error, or ErrClosed; nil never. f may call the store. A slow f delays
	// nobody but itself, and no snapshot is kept while it runs.
	Tail(ctx context.Context, after int64, f func(Event) error) error

	// Head is the position of the last committed event, 0 in an empty store.
	Head(ctx context.Context) (int64, error)

	// Stream calls f with the events of one stream after a version, in order, up
	// to the last that is committed when it is called.
	Stream(ctx context.Context, stream string, after int64, f func(Event) error) error

	// Boot is this ownership's id.
	Boot() BootID

	// Close refuses new work with ErrClosed, finishes what was accepted, and
	// gives up the ownership. Later calls do nothing and return the same.
	Close() error
}

// Schema is one feature's tables: goose migrations in SQL, named like
// "00001_calls.sql", in the folder "sqlite" of FS (later also "postgres"). Each
// feature has a version of its own, so features grow independently. Migrations run
// inside a transaction each and only forwards.
type Schema struct {
	Name string // lower-case letters, digits and underscores, unique in a store
	FS   fs.FS
}
