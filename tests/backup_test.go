package tests

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// killedAt runs box with a failpoint armed and wants it killed there.
func killedAt(t *testing.T, mark, box string, args ...string) {
	t.Helper()
	cmd := exec.Command(box, args...)
	cmd.Env = append(os.Environ(), "INBAND_FAILPOINT="+mark)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Exited() {
		t.Fatalf("box %s was not killed at %s: %v\n%s", strings.Join(args, " "), mark, err, out)
	}
}

// ran runs box and wants an exit code.
func ran(t *testing.T, want int, box string, args ...string) string {
	t.Helper()
	out, err := exec.Command(box, args...).CombinedOutput()
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if code != want {
		t.Fatalf("box %s: exit code %d, want %d:\n%s", strings.Join(args, " "), code, want, out)
	}
	return string(out)
}

// A backup and a restore are killed at each of their moments, and the gateway that makes a
// backup is: what is left is a whole one or none, nothing that is in half opens, and doing
// it again does it.
func TestBackupIsKilled(t *testing.T) {
	box, dir := build(t, "failpoint"), t.TempDir()
	state := filepath.Join(dir, "state")
	g := serveAlive(t, box, state)
	for i := range 5 {
		ran(t, 0, box, "--state", state, "exec", "dm.send", "to=#lobby", fmt.Sprint("text=before ", i))
	}
	g.kill()
	good := filepath.Join(dir, "good.tar")
	ran(t, 0, box, "--state", state, "backup", good)

	none := func(file string) {
		t.Helper()
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", file, err)
		}
	}
	leftIn := func() int {
		t.Helper()
		left, err := filepath.Glob(filepath.Join(state, ".backup-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	for i, mark := range []string{"backup.copied", "backup.written", "backup.synced"} {
		file := filepath.Join(dir, fmt.Sprint("offline-", i, ".tar"))
		killedAt(t, mark, box, "--state", state, "backup", file)
		none(file)
		ran(t, 0, box, "--state", state, "backup", file)
		ran(t, 0, box, "backup", "verify", file)
		if n := leftIn(); n > 0 {
			t.Errorf("%d copies of the journal are left after a kill at %s", n, mark)
		}
	}
	for i, mark := range []string{"backup.copied", "backup.written"} { // in the gateway
		g := serve(t, box, state, "INBAND_FAILPOINT="+mark)
		file := filepath.Join(dir, fmt.Sprint("online-", i, ".tar"))
		out, err := exec.Command(box, "--state", state, "backup", file).CombinedOutput()
		if err == nil {
			t.Fatalf("the gateway was not killed at %s:\n%s", mark, out)
		}
		<-g.dead
		none(file)
		g = serveAlive(t, box, state)
		if n := leftIn(); n > 0 {
			t.Errorf("%d copies of the journal are left after the gateway was killed at %s", n, mark)
		}
		ran(t, 0, box, "--state", state, "backup", file)
		g.kill()
		ran(t, 0, box, "backup", "verify", file)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*.tar.*")); err != nil || len(left) > 3 {
		t.Errorf("%d files are left of backups that were killed, %v", len(left), err)
	}

	// Of the thirteen names that a restore moves, the last is the journal.
	for i, mark := range []string{"restore.begun", "restore.extracted", "restore.changed", "restore.moved:1", "restore.moved:12", "restore.moved:13"} {
		again := filepath.Join(dir, fmt.Sprint("again-", i))
		killedAt(t, mark, box, "--state", again, "restore", good)
		for _, args := range [][]string{{"init"}, {"serve", "--listen", "127.0.0.1:0"}} {
			if out := ran(t, 6, box, append([]string{"--state", again}, args...)...); !strings.Contains(out, "was cut off") {
				t.Errorf("after a kill at %s, %s says %s", mark, args[0], out)
			}
		}
		ran(t, 0, box, "--state", again, "restore", good)
		ran(t, 0, box, "--state", again, "audit", "verify")
	}
	again := filepath.Join(dir, "again-0")
	serveAlive(t, box, again)
	if out := ran(t, 0, box, "--state", again, "threads", "--json"); strings.Count(out, "t-") < 5 {
		t.Errorf("the threads of before are not there:\n%s", out)
	}
}
