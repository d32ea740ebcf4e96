package sqlite_test

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"inband/failpoint"
	"inband/service/journal"
	"inband/service/journal/sqlite"
)

var kills = flag.Int("kills", 12, "how often TestKill kills its child")

// The test binary runs itself as the process to be killed, or as the first owner.
// childEnv holds what it is to do and to which journal, as JSON.
const childEnv = "INBAND_JOURNAL_CHILD"

type child struct {
	Do, Path string
	Writers  int // 0 is 8
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runChild(text string) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	if c.Do == "lock" {
		return holdLock(c.Path)
	}
	s, err := sqlite.Open(context.Background(), config(c.Path))
	if err != nil {
		return err
	}
	fmt.Println("open", s.Boot())
	if c.Do == "write" {
		keepWriting(s, cmp.Or(c.Writers, 8))
	}
	_, err = io.Copy(io.Discard, os.Stdin) // until the parent is done with it
	return errors.Join(err, s.Close())
}

// holdLock holds the lock that writers take, as a shell that knows nothing of owners would,
// until its input ends.
func holdLock(path string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	fmt.Println("locked")
	_, err = io.Copy(io.Discard, os.Stdin)
	_, ended := db.Exec("ROLLBACK")
	return errors.Join(err, ended, db.Close())
}

// keepWriting records names until it is killed, and says of each what it was told.
func keepWriting(s *sqlite.Store, writers int) {
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprint(s.Boot(), "/", w, "/", i)
				verdict := "kept"
				if err := record(s, name, make([]byte, 100*w)); err != nil {
					verdict = "lost"
				}
				fmt.Println(verdict, name) // one write a line
			}
		})
	}
	group.Wait()
}

// start runs a child and returns its output, line by line.
func start(t *testing.T, c child, env ...string) (*exec.Cmd, io.Closer, *bufio.Scanner) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, childEnv+"="+string(text))...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // gone already, unless the test has failed
		_ = cmd.Wait()
	})
	return cmd, in, bufio.NewScanner(out)
}

// What a killed process has acknowledged is in the journal, and what it has reported
// failed is not.
func TestKill(t *testing.T) {
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	path := filepath.Join(t.TempDir(), "journal.db")
	kept, lost := map[string]bool{}, map[string]bool{}
	moments := []string{"a random moment"}
	if failpoint.Enabled {
		moments = append(moments, "journal.before-commit", "journal.after-commit")
	}
	killed := map[string]int{}
	for round := range *kills {
		moment := moments[round%len(moments)]
		var env []string
		after := 1 + random.IntN(300)
		if failpoint.Enabled && round%len(moments) > 0 {
			env = []string{fmt.Sprintf("INBAND_FAILPOINT=%s:%d", moment, 1+random.IntN(40))}
			after = -1
		}
		cmd, _, lines := start(t, child{Do: "write", Path: path}, env...)
		for lines.Scan() {
			verdict, name, _ := strings.Cut(lines.Text(), " ")
			switch verdict {
			case "kept":
				kept[name] = true
			case "lost":
				lost[name] = true
			}
			if after--; after == 0 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Fatalf("round %d, %s: the child ended with %v", round, moment, err)
		}
		killed[moment]++

		s := open(t, config(path))
		compare(t, recorded(t, s), kept, lost)
		var boots int
		err := s.View(t.Context(), func(tx journal.Tx) error {
			return tx.Query(`SELECT count(*) FROM journal_boots WHERE how = 'lost'`, func(scan func(...any) error) error { return scan(&boots) })
		})
		if err != nil || boots > round+1 {
			t.Errorf("round %d: %d lost boots, %v", round, boots, err)
		}
		shut(t, s)
	}
	t.Logf("%d acknowledged, none missing; kills: %v", len(kept), killed)
	if len(kept) == 0 {
		t.Error("nothing was acknowledged")
	}
}

func TestSecondOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	cmd, in, lines := start(t, child{Do: "hold", Path: path})
	if !lines.Scan() {
		t.Fatal("the child did not open the journal")
	}
	boot := strings.TrimPrefix(lines.Text(), "open ")
	refused(t, config(path), journal.ErrOwned, fmt.Sprintf("owned by process %d since ", cmd.Process.Pid))
	var owned *journal.OwnedError
	if _, err := sqlite.Open(t.Context(), config(path)); !errors.As(err, &owned) || owned.PID != cmd.Process.Pid || owned.Since.IsZero() {
		t.Errorf("got %v, want the owner's process id and time", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	_ = in.Close()

	s := open(t, config(path)) // a dead owner owns nothing
	refused(t, config(path), journal.ErrOwned, fmt.Sprint("process ", os.Getpid()))
	how := map[string]string{}
	err := s.View(t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT id, coalesce(how, 'open') FROM journal_boots`, func(scan func(...any) error) error {
			var id, h string
			err := scan(&id, &h)
			how[id] = h
			return err
		})
	})
	if err != nil || how[boot] != "lost" || how[string(s.Boot())] != "open" || len(how) != 2 {
		t.Errorf("boots: %v, %v", how, err)
	}
	shut(t, s)
	shut(t, open(t, config(path)))
}
