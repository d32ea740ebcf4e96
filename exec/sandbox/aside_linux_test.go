package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"inband/exec/proc"
	"inband/exec/sandbox"
)

// A gateway that is root is out of reach of every process of the user that its own
// processes run as, confined or not: none of its threads has that user's real or saved
// id, by which kill(2) decides, while one runs. It still ends the process.
func TestUserCannotReachTheGateway(t *testing.T) {
	asRoot(t)
	s, err := sandbox.New(sandbox.Policy{Program: "/usr/bin/sleep", User: &nobody, Reads: true})
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe() // the process holds the reading end while it lives
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ended := make(chan proc.Result, 1)
	go func() {
		res, err := proc.Run(t.Context(), proc.Spec{Argv: []string{"/usr/bin/sleep", "1000"}, Timeout: time.Second, OutputMax: 1, StdinFile: r,
			Owner: &proc.Owner{UID: nobody.UID, GID: nobody.GID}, Scratch: "/tmp", Confine: s.Confine, Aside: s.Aside, Limit: s.Limit})
		r.Close()
		if err != nil {
			t.Error(err)
		}
		ended <- res
	}()
	looked := 0
	for {
		tasks, err := filepath.Glob("/proc/self/task/*/status")
		if err != nil {
			t.Fatal(err)
		}
		running := childOf(t, "sleep")
		for _, task := range tasks {
			status, err := os.ReadFile(task)
			_, ids, _ := strings.Cut(string(status), "\nUid:")
			var id [4]int
			if n, _ := fmt.Sscan(ids, &id[0], &id[1], &id[2], &id[3]); err != nil || n < 4 {
				continue // it has ended
			}
			if running && childOf(t, "sleep") && (id[0] == int(nobody.UID) || id[2] == int(nobody.UID)) {
				t.Errorf("%s: its ids are %v", task, id)
			}
		}
		if running {
			looked++
		}
		select {
		case res := <-ended:
			if looked == 0 || res.Stopped != proc.Deadline || res.Signal != syscall.SIGTERM {
				t.Errorf("looked %d times; %+v", looked, res)
			}
			return
		default:
		}
	}
}

// childOf reports whether a process of this one runs under a name: it is past its exec.
func childOf(t *testing.T, name string) bool {
	t.Helper()
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(b)) {
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			if _, rest, ok := strings.Cut(string(stat), "("+name+") "); ok && strings.HasPrefix(rest, "S") {
				return true
			}
		}
	}
	return false
}
