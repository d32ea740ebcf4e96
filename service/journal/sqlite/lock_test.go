package sqlite

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"inband/service/journal"
)

// lingerer holds the lock of path as a child does that a process was just starting
// when it was killed: the descriptor is inherited, and the file names pid.
func lingerer(t *testing.T, path string, pid int, seconds string) {
	t.Helper()
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := flock(f); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(owner{PID: pid, Since: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", seconds)
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
}

// deadPID returns the pid of a process that is gone.
func deadPID(t *testing.T) int {
	t.Helper()
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid
}

func TestLockOfADeadOwnerIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	lingerer(t, path, deadPID(t), "0.3")
	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatalf("open behind a dead owner: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestLockOfALiveOwnerIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	lingerer(t, path, os.Getpid(), "60")
	if _, err := Open(t.Context(), Config{Path: path}); !errors.Is(err, journal.ErrOwned) {
		t.Fatalf("got %v, want ErrOwned", err)
	}
}

func TestLockOfADeadOwnerIsNotWaitedForForEver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	pid := deadPID(t)
	lingerer(t, path, pid, "60")
	var owned *journal.OwnedError
	if _, err := Open(t.Context(), Config{Path: path}); !errors.As(err, &owned) || owned.PID != pid {
		t.Fatalf("got %v, want ErrOwned by %d", err, pid)
	}
}
