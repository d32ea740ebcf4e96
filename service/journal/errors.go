package journal

import (
	"errors"
	"fmt"
	"time"
)

// What callers branch on with errors.Is. The errors that a store returns wrap these
// and say more.
var (
	// ErrConflict: the stream is not at the expected version; see ConflictError.
	ErrConflict = errors.New("stream version conflict")
	// ErrConstraint: a unique, check, not-null or foreign key rule was violated.
	ErrConstraint = errors.New("constraint violated")
	// ErrInvalid: a name, body or statement that no engine accepts.
	ErrInvalid = errors.New("invalid journal entry")
	// ErrReadOnly: a write inside a View.
	ErrReadOnly = errors.New("read-only transaction")
	// ErrFull: no room for the write. Nothing of it remains; it may succeed later.
	ErrFull = errors.New("journal is full")
	// ErrScarce: the machine has no descriptor for another reader now. It may succeed
	// soon.
	ErrScarce = errors.New("journal cannot be opened once more now")
	// ErrBusy: another program, a shell or a copying tool, held the database for too
	// long. Nothing remains of the write; it may succeed soon.
	ErrBusy = errors.New("journal is held by another program")
	// ErrTooLong: a View took so long that it was ended, because what it looked at
	// could not be tidied away. Whoever reads much reads it in parts.
	ErrTooLong = errors.New("journal view took too long")
	// ErrCorrupt: the database is damaged or is not one.
	ErrCorrupt = errors.New("journal is damaged or not one")
	// ErrOwned: another process owns the store; see OwnedError.
	ErrOwned = errors.New("journal is owned by another process")
	// ErrNewerSchema: the database was written by a newer program.
	ErrNewerSchema = errors.New("journal has a newer schema")
	// ErrClosed: the store is closed or closing.
	ErrClosed = errors.New("journal is closed")
	// ErrUnknownCommit: the commit was sent, and whether it holds cannot be known.
	// The store takes no more writes after it, because they would build on a
	// guess. Whoever gets it says "unknown", never "failed", and reads again
	// after the next start.
	ErrUnknownCommit = errors.New("commit outcome unknown")
)

// ConflictError says which version a stream has instead of the expected one.
type ConflictError struct {
	Stream           string
	Expected, Actual int64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("stream %q is at version %d, not %d", e.Stream, e.Actual, e.Expected)
}

// Is makes a ConflictError an ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// OwnedError says who holds a store that cannot be opened.
type OwnedError struct {
	Path  string
	PID   int       // 0 when the owner has not said
	Since time.Time // zero when the owner has not said
}

func (e *OwnedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("journal %s is owned by another process", e.Path)
	}
	return fmt.Sprintf("journal %s is owned by process %d since %s", e.Path, e.PID, e.Since.UTC().Format(time.RFC3339))
}

// Is makes an OwnedError an ErrOwned.
func (e *OwnedError) Is(target error) bool { return target == ErrOwned }
