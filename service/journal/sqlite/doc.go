// Package sqlite keeps the journal in one SQLite file: the embedded engine of
// [journal.Store], for one gateway.
//
// It refuses to open what it could not answer for: a database that another process
// owns, that is damaged or not a journal, that a newer program has written, or on
// which SQLite would not wait for the disk. After an error nothing stays open and no
// lock is held.
//
// # How a write goes
//
// One goroutine, the writer, takes the operations that wait, gives each a savepoint
// and its turn, and commits them together: group commit. The costly part of a commit
// is the wait for the disk, and it is paid once a batch. Nobody is told anything, not
// even an error, before the batch is durable, because what a func has seen may be
// what another operation of the batch wrote.
//
//   - An error of the func, a conflict or a violated constraint rolls back to the
//     operation's savepoint, and concerns its caller only.
//   - Any other error of the database rolls back the batch. Its cause goes to the
//     operation that met it; the others run again, each in a transaction of its own.
//   - A COMMIT that reports an error is settled before anybody is answered: by one
//     more commit on top, the doubtful one is either confirmed or gone for good. If
//     that fails too, the answer is [journal.ErrUnknownCommit] and writing stops.
//
// Operations of [journal.Urgent] wait apart and stand first in the next batch, but for one
// place in sixteen, which is kept for the others. The transaction is begun before the batch
// is chosen. So whoever is urgent and comes while another program has the database is still
// among the first, and whoever's ctx ends leaves. A program that keeps it for more than
// five seconds makes the waiting ones [journal.ErrBusy].
//
// # The log
//
// Commits go into a log, PATH-wal, and from there into the database file. SQLite does that
// within commits and waits for nobody, which comes to nothing while somebody reads from an
// old snapshot. So nobody keeps one for long: Tail, Stream and Events keep none while their
// func runs, and a View is ended after [Config.MaxView]. When the log has half of
// [Config.MaxLog], the writer waits for readers, 50 ms at a time, to move and cut it
// whole; Views that are over a second old are ended for it, and from three quarters on all
// are. Two things are left that may take it over its bound: a [Store.Backup], and a program
// that is not this one. [Store.Load] shows how large the log is and how old the oldest
// reader.
//
// # Files
//
// Beside PATH stand PATH-wal and PATH-shm, SQLite's own, and PATH.lock, which names
// the owner. What stands in PATH-wal is not in PATH yet: copy both together, from a
// closed store, or neither, and never put one beside another time's. The file system
// must be a local one; flock and shared memory do not cross a network.
// [Store.Backup] copies an open store.
package sqlite
