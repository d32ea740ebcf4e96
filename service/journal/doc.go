// Package journal is the vocabulary of the store: what happened, kept in order,
// together with what the features derive from it, in one transaction.
//
// An event is appended to a stream (one call, one thread, one delegation) and gets
// the stream's next version; it also gets a position, which orders it among all
// events of the store. A projection is a feature's own table, written with the
// feature's own SQL in the same transaction as the events it follows from, so that
// neither can stand without the other.
//
// # Words
//
//   - store: one journal with its projections, owned by one process at a time
//   - boot: one ownership of a store, from open to close or crash; its id is a row
//   - stream, version: a named sequence of events, counted from 1 without gaps
//   - position: the place of an event in the order over all streams, from 1
//   - head: the position of the last committed event
//   - schema: the migrations of one feature's tables, with their own version
//
// # What it promises
//
//   - Update returns nil only when everything its func wrote is on stable storage.
//   - Update returns an error only when nothing its func wrote remains, with one
//     exception that has a name, [ErrUnknownCommit].
//   - Tail shows committed events only, each once, in the order of positions.
//   - The store's clock never runs back, not even across a restart.
//
// # What it refuses
//
// A stale version ([ErrConflict]), a broken constraint ([ErrConstraint]), a name or
// body out of bounds ([ErrInvalid]), a second owner ([ErrOwned]), a database written
// by a newer program ([ErrNewerSchema]), a damaged one ([ErrCorrupt]), a write in a
// View ([ErrReadOnly]), and a View that does not end ([ErrTooLong]).
//
// The engines are packages below this one (sqlite); storetest is the suite that each
// of them passes. This package imports nothing else of the project.
package journal
