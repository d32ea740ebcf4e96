package sqlite

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"inband/service/journal"
)

// fileLock is the ownership of a database file: an exclusive flock on a file beside
// it. The kernel drops it when the process dies, however it dies, so a lock is never
// stale for long: a child that the dead process was just starting holds it until it
// has become another program. The file stays: removing it would let two owners lock two files of one name.
type fileLock struct{ file *os.File }

// owner is what the lock file holds, for the message of whoever comes second.
type owner struct {
	PID   int            `json:"pid"`
	Since time.Time      `json:"since"`
	Boot  journal.BootID `json:"boot"`
}

// lingering bounds the wait for a lock whose owner is dead.
const lingering = 2 * time.Second

// lockFile takes the lock of the database at path, or says who has it. It waits only
// for one whose owner is dead.
func lockFile(path string, me owner) (*fileLock, error) {
	name := path + ".lock"
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for deadline := time.Now().Add(lingering); ; time.Sleep(5 * time.Millisecond) {
		err := flock(f)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock: %w", err)
		}
		owned := ownedBy(path, f)
		if !dead(owned) || time.Now().After(deadline) {
			f.Close()
			return nil, owned
		}
	}
	l := &fileLock{f}
	text, err := json.Marshal(me)
	if err == nil {
		err = l.write(text)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock: %w", noRoom(err))
	}
	return l, nil
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ownedBy reads who holds the lock. An owner that has not written yet stays unnamed.
func ownedBy(path string, f *os.File) *journal.OwnedError {
	e := &journal.OwnedError{Path: path}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	var who owner
	if err == nil && json.Unmarshal(text, &who) == nil {
		e.PID, e.Since = who.PID, who.Since
	}
	return e
}

// dead reports whether the owner is known and gone. An owner in another PID
// namespace can look so too; then the wait is in vain, and nothing else.
func dead(owned *journal.OwnedError) bool {
	return owned.PID > 0 && errors.Is(unix.Kill(owned.PID, 0), unix.ESRCH)
}

func (l *fileLock) write(text []byte) error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt(text, 0)
	return err
}

// release gives the ownership up. It forgets the name first, so that nobody is told
// of an owner that has gone.
func (l *fileLock) release() error {
	return errors.Join(l.write(nil), l.file.Close())
}
