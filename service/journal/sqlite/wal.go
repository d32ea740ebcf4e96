package sqlite

import (
	"context"
	"fmt"
	"os"
	"time"
)

const (
	// tendWait bounds how long the writer waits for readers when it empties the log, and
	// nobody's commit meanwhile.
	tendWait = 50 * time.Millisecond

	// tendAgain is how long after a try in vain the next one is due.
	tendAgain = time.Second

	// oldView is what a View has lasted when the log, half full, is worth more than it.
	oldView = time.Second
)

// walLog is the write-ahead log, as a file that must not grow for ever. SQLite begins it
// anew when all of it stands in the database file and nobody reads from it, and every commit
// brings that nearer, without waiting for anybody. It comes to nothing while a reader holds
// an old snapshot, or while there is always one reader or another.
type walLog struct {
	path string
	most int64 // bytes

	// of the writer's goroutine only
	tried int64       // its size after the last try to empty it, 0 if that has done it
	again *time.Timer // the next try, when nobody writes
}

// size is the length of the file, 0 if there is none.
func (l *walLog) size() int64 {
	info, err := os.Stat(l.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// tend empties the log when it has grown to half of its bound. Then Views that are old give
// way, and from three quarters on all of them do. What does not give way, a Backup or
// another program, is waited for no longer than tendWait at a time, and tried again when the
// log has grown by a sixteenth of the bound or when it is due.
func (w *writer) tend(due bool) {
	l := &w.wal
	size := l.size()
	switch {
	case size < l.most/2:
		l.tried = 0
		return
	case size < l.tried+l.most/16 && !due:
		return
	}
	age := oldView
	if size >= l.most/4*3 {
		age = 0
	}
	emptied, err := w.truncate()
	if err == nil && !emptied && w.endViews(age, size) > 0 {
		emptied, err = w.truncate()
	}
	if l.tried = l.size(); !emptied {
		l.again.Reset(tendAgain)
	}
	switch {
	case err != nil:
		w.log.Warn("the journal's log cannot be emptied", "bytes", size, "err", err)
	case !emptied && size >= l.most:
		w.log.Warn("the journal's log is over its bound: a backup or another program reads from it", "bytes", size, "bound", l.most)
	}
}

// truncate moves the log into the database file and cuts it to nothing. It reports false
// when a reader was in the way for longer than tendWait.
func (w *writer) truncate() (bool, error) {
	if _, err := w.c.exec(fmt.Sprintf("PRAGMA busy_timeout = %d", tendWait.Milliseconds())); err != nil {
		return false, err
	}
	var busy, frames, moved int64
	checkpoint, err := w.c.prepare("PRAGMA wal_checkpoint(TRUNCATE)")
	if err == nil {
		err = checkpoint.QueryRowContext(context.Background()).Scan(&busy, &frames, &moved)
	}
	if _, again := w.c.exec(fmt.Sprintf("PRAGMA busy_timeout = %d", busyTimeout.Milliseconds())); err == nil {
		err = again
	}
	return err == nil && busy == 0, err
}
