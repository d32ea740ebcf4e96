package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"inband/exec/command"
)

func TestMain(m *testing.M) {
	command.Canary()
	command.Helper()
	testscript.Main(m, map[string]func(){"box": func() { os.Exit(Main()) }})
}

// TestScript runs the scripts against the real binary. Beside testscript's commands
// they have:
//
//	exits CODE PROGRAM ARGS…   run it; want exactly this exit code
//	serve NAME ARGS…           start box serve, and go on once it listens
//	signal NAME SIGNAL         send it a signal
//	logged NAME PATTERN        wait until it logs a line that matches
//	ended NAME CODE            wait for its end; want exactly this exit code
//	fill FILE BYTES TEXT       write a file of TEXT, repeated
//	let NAME = PATTERN         set a variable to what (…) matches in the last output
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("INBAND_STATE", filepath.Join(e.WorkDir, "state"))
			e.Setenv("XDG_STATE_HOME", "")
			e.Setenv("TZ", "UTC")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "serve": serve, "signal": signalCmd, "logged": logged, "ended": ended, "fill": fill, "let": let,
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS…")
	}
	if got := exitCode(ts.Exec(args[1], args[2:]...)); strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// served is a box serve that a script has started.
type served struct {
	cmd  *exec.Cmd
	done chan error

	mu    sync.Mutex
	log   []string
	grown *sync.Cond
	ended bool
}

type servedKey string

func serve(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: serve NAME ARGS…")
	}
	cmd := exec.Command(lookPath(ts, "box"), append([]string{"serve", "--listen", "127.0.0.1:0"}, args[1:]...)...)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HOME", "INBAND_STATE", "TMPDIR", "TZ", "GOCOVERDIR", "DEPLOY_TOKEN"} {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	s := &served{cmd: cmd, done: make(chan error, 1)}
	s.grown = sync.NewCond(&s.mu)
	go s.read(stderr)
	ts.Defer(func() {
		s.cmd.Process.Kill()
		<-s.done
	})
	running.Store(key(ts, args[0]), s)
	s.wait(ts, regexp.MustCompile(`"msg":"listening"`))
}

// running is the gateways by script and name.
var running sync.Map

func key(ts *testscript.TestScript, name string) servedKey {
	return servedKey(ts.Getenv("WORK") + "\x00" + name)
}

func (s *served) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		s.mu.Lock()
		s.log = append(s.log, lines.Text())
		s.mu.Unlock()
		s.grown.Broadcast()
	}
	err := s.cmd.Wait()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.grown.Broadcast()
	s.done <- err
	close(s.done)
}

// wait waits for a line of the log.
func (s *served) wait(ts *testscript.TestScript, pattern *regexp.Regexp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for from := 0; ; s.grown.Wait() {
		for ; from < len(s.log); from++ {
			if pattern.MatchString(s.log[from]) {
				return
			}
		}
		if s.ended {
			ts.Fatalf("the gateway ended without a line that matches %s:\n%s", pattern, strings.Join(s.log, "\n"))
		}
	}
}

func find(ts *testscript.TestScript, name string) *served {
	s, ok := running.Load(key(ts, name))
	if !ok {
		ts.Fatalf("no gateway %s was started", name)
	}
	return s.(*served)
}

func signalCmd(ts *testscript.TestScript, _ bool, args []string) {
	signals := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}
	if len(args) != 2 || signals[args[1]] == 0 {
		ts.Fatalf("usage: signal NAME TERM|INT|HUP|KILL")
	}
	ts.Check(find(ts, args[0]).cmd.Process.Signal(signals[args[1]]))
}

func logged(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: logged NAME PATTERN")
	}
	find(ts, args[0]).wait(ts, regexp.MustCompile(args[1]))
}

func ended(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: ended NAME CODE")
	}
	s := find(ts, args[0])
	if got := exitCode(<-s.done); strconv.Itoa(got) != args[1] {
		ts.Fatalf("exit code %d, want %s:\n%s", got, args[1], strings.Join(s.log, "\n"))
	}
}

func fill(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: fill FILE BYTES TEXT")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	b := []byte(strings.Repeat(args[2], n/len(args[2])+1))[:n]
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
}

func let(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 || args[1] != "=" {
		ts.Fatalf("usage: let NAME = PATTERN")
	}
	m := regexp.MustCompile(args[2]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(m) != 2 {
		ts.Fatalf("%s does not match the last output with one group", args[2])
	}
	ts.Setenv(args[0], m[1])
}

func lookPath(ts *testscript.TestScript, program string) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if path := filepath.Join(dir, program); isFile(path) {
			return path
		}
	}
	ts.Fatalf("%s", fmt.Sprintf("%s is not in PATH", program))
	return ""
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
