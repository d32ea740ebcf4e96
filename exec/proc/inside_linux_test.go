package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// initHooks are what the inits of these tests do, as their task says.
func initHooks(task []byte) (Hooks, error) {
	switch string(task) {
	case "no task":
		return Hooks{}, unix.EMFILE
	case "no confine":
		return Hooks{Confine: func(string) error { return errors.New("on purpose") }}, nil
	case "no limit":
		return Hooks{Limit: func(int) error { return errors.New("on purpose") }}, nil
	case "breaks":
		panic("on purpose")
	case "folder":
		return Hooks{Confine: func(folder string) error { return os.WriteFile(filepath.Join(folder, "hooked"), nil, 0o600) },
			Limit: func(pid int) error {
				return unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{Cur: 77 << 9, Max: 77 << 9}, nil)
			}}, nil
	}
	return Hooks{}, nil
}

// outAndIn runs f with a function that puts a Spec into namespaces, and one that does
// not: whatever f asks holds for both.
func outAndIn(t *testing.T, f func(t *testing.T, put func(Spec) Spec)) {
	t.Run("outside", func(t *testing.T) { f(t, func(s Spec) Spec { return s }) })
	t.Run("inside", func(t *testing.T) {
		needNamespaces(t)
		f(t, func(s Spec) Spec { s.Inside = &Inside{Network: true}; return s })
	})
}

func needNamespaces(t testing.TB) {
	t.Helper()
	if _, err := Namespaces(true); err != nil {
		t.Skipf("no namespaces here: %v", err)
	}
}

func sh(t testing.TB, script string) Spec {
	return Spec{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Scratch: t.TempDir(), Timeout: time.Minute, OutputMax: 64 << 10}
}

// asleep is a script that waits until what was put into the background is a sleep.
const asleep = `until read -r name </proc/$!/comm && [ "$name" = sleep ]; do :; done; `

// How a process ends is told the same whether it runs in namespaces or not.
func TestInsideEndsAsOutside(t *testing.T) {
	outAndIn(t, func(t *testing.T, put func(Spec) Spec) {
		for _, c := range []struct {
			script string
			change func(*Spec)
			want   string
		}{
			{"printf %s \"$A\"; printf %s \"$0\"", func(s *Spec) { s.Env, s.Argv = append(s.Env, "A=\xff\n\xc3<"), append(s.Argv, "\xfe>") },
				"exit 0, signal 0, stopped , left [], out \xff\n\xc3<\xfe>"},
			{"exit 0", nil, "exit 0, signal 0, stopped , left [], out "},
			{"echo out; exit 7", nil, "exit 7, signal 0, stopped , left [], out out\n"},
			{"exit 255", nil, "exit 255, signal 0, stopped , left [], out "},
			{"kill -KILL $$", nil, "exit -1, signal 9, stopped , left [], out "},
			{"kill -TERM $$", nil, "exit -1, signal 15, stopped , left [], out "},
			{"kill -SEGV $$", nil, "exit -1, signal 11, stopped , left [], out "},
			{"kill -USR1 $$", nil, "exit -1, signal 10, stopped , left [], out "},
			{"cat", func(s *Spec) { s.Stdin = bytes.Repeat([]byte("0123456789abcde\n"), 4096) }, "exit 0, signal 0, stopped , left [], out " + strings.Repeat("0123456789abcde\n", 4096)},
			{"cat <&3; ls /proc/self/fd", func(s *Spec) { s.Files = []*os.File{pipeOf(t, "third\n")} }, "exit 0, signal 0, stopped , left [], out third\n0\n1\n2\n3\n4\n"},
			{"sleep 1000", func(s *Spec) { s.Timeout = 100 * time.Millisecond }, "exit -1, signal 15, stopped deadline, left [], out "},
			{"trap '' TERM; sleep 1000; sleep 1000", func(s *Spec) { s.Timeout, s.Grace = time.Second, 50*time.Millisecond }, "exit -1, signal 9, stopped deadline, left [], out "},
			{"trap 'echo told; exit 3' TERM; sleep 1000 & wait", func(s *Spec) { s.Timeout = time.Second }, "exit 3, signal 0, stopped deadline, left [], out told\n"},
			{"sleep 1000 & " + asleep + "exit 4", nil, "exit 4, signal 0, stopped , left [sleep], out "},
			{"setsid sleep 1000 & " + asleep + "sleep 1000 & " + asleep + "exit 5", nil, "exit 5, signal 0, stopped , left [sleep sleep], out "},
			{"(exit 9) & (exit 8) & wait; exit 1", nil, "exit 1, signal 0, stopped , left [], out "},
			{"env; pwd | sed s,.*/,, | cut -c 1-10; umask; cat /proc/self/stat | cut -d ' ' -f 7", func(s *Spec) { s.Env = append(s.Env, "A=b c", "GODEBUG=x") },
				"exit 0, signal 0, stopped , left [], out A=b c\nGODEBUG=x\nPATH=/usr/bin:/bin\ninband-run\n0077\n0\n"},
		} {
			spec := put(sh(t, c.script))
			if c.change != nil {
				c.change(&spec)
			}
			res := mustRun(t, spec)
			if strings.HasPrefix(c.script, "env;") { // what a shell adds by itself
				kept := slices.DeleteFunc(strings.SplitAfter(string(res.Stdout.Head), "\n"), func(l string) bool { return strings.HasPrefix(l, "PWD=") })
				slices.Sort(kept[:slices.IndexFunc(kept, func(l string) bool { return strings.HasPrefix(l, "inband") })])
				res.Stdout.Head = []byte(strings.Join(kept, ""))
			}
			slices.Sort(res.LeftBehind)
			if got := fmt.Sprintf("exit %d, signal %d, stopped %s, left %v, out %s", res.Exit, res.Signal, res.Stopped, res.LeftBehind, res.Stdout.Head); got != c.want {
				t.Errorf("%s: got %.300s, want %.300s (%s)", c.script, got, c.want, res.Stderr.Head)
			}
			if res.LeftBehind != nil && len(res.LeftBehind) == 0 {
				t.Errorf("%s: nothing was left behind, and that is not nil", c.script)
			}
			if left, _ := os.ReadDir(spec.Scratch); len(left) != 0 {
				t.Errorf("%s: left in the scratch folder: %v", c.script, left)
			}
		}
	})
}

// pipeOf returns the reading end of a pipe that holds text.
func pipeOf(t *testing.T, text string) *os.File {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return r
}

// What does not start is a StartError in both, with the error of the system.
func TestInsideRefusals(t *testing.T) {
	outAndIn(t, func(t *testing.T, put func(Spec) Spec) {
		for program, want := range map[string]error{"/nothing.there": syscall.ENOENT, "/etc/passwd": syscall.EACCES, "/etc": syscall.EACCES} {
			var start *StartError
			if res, err := Run(t.Context(), put(Spec{Argv: []string{program}, Scratch: t.TempDir(), Timeout: time.Second, OutputMax: 1})); !errors.As(err, &start) || !errors.Is(err, want) {
				t.Errorf("%s: got %+v, %v; want %v", program, res, err, want)
			}
		}
	})
	needNamespaces(t)
	for task, want := range map[string]string{"no task": syscall.EMFILE.Error(), "no confine": "confine: on purpose", "no limit": "on purpose", "breaks": "panic: on purpose"} {
		made := filepath.Join(t.TempDir(), "made")
		spec := sh(t, "echo >"+made)
		spec.Inside = &Inside{Task: []byte(task)}
		var start *StartError
		if res, err := Run(t.Context(), spec); !errors.As(err, &start) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v; want %s", task, res, err, want)
		}
		if _, err := os.Stat(made); err == nil {
			t.Errorf("%s: it ran", task)
		}
		if left, _ := os.ReadDir(spec.Scratch); len(left) != 0 {
			t.Errorf("%s: left in the scratch folder: %v", task, left)
		}
	}
	spec := sh(t, ":")
	spec.Inside, spec.Confine = &Inside{}, func(string) error { return nil }
	if _, err := Run(t.Context(), spec); err == nil {
		t.Error("Confine outside of namespaces: no error")
	}
}

// A process sees its own pids, no IPC object and no network but a loopback interface that
// is down.
func TestInsideSees(t *testing.T) {
	needNamespaces(t)
	id, _, errno := unix.Syscall(unix.SYS_SHMGET, 0, 4096, unix.IPC_CREAT|0o600) // IPC_PRIVATE
	if errno != 0 {
		t.Fatal(errno)
	}
	defer unix.SysvShmCtl(int(id), unix.IPC_RMID, nil)
	if b, _ := os.ReadFile("/proc/sysvipc/shm"); bytes.Count(b, []byte("\n")) < 2 {
		t.Fatalf("the object cannot be seen outside: %s", b)
	}
	spec := sh(t, `echo $$ $PPID; echo /proc/[0-9]*; wc -l </proc/sysvipc/shm; cat /proc/net/dev | sed 1,2d | cut -d: -f 1; grep -c 127.0.0.1 /proc/net/fib_trie; tr '\0' ' ' </proc/1/cmdline; id -u; cat hooked; ulimit -c`)
	spec.Inside = &Inside{Network: true, Task: []byte("folder")}
	res := mustRun(t, spec)
	out := strings.Join(strings.Fields(string(res.Stdout.Head)), " ")
	own := strconv.Itoa(os.Getuid())
	want := regexp.MustCompile(`^(\d+) 1 /proc/1 /proc/(\d+) 1 lo 0 ` + initName + ` \d+ ` + own + ` 77$`)
	if m := want.FindStringSubmatch(out); m == nil || m[1] != m[2] {
		t.Errorf("got %s %s; want %v", out, res.Stderr.Head, want)
	}
	names, err := Namespaces(true)
	if err != nil || !slices.Equal(names[:4], []string{"pid", "ipc", "mount", "net"}) || len(names) > 4 != needsUser() {
		t.Errorf("namespaces: %v, %v", names, err)
	}
	for _, network := range []bool{true, false} {
		spec := sh(t, `for n in pid ipc mnt net; do readlink /proc/self/ns/$n; done`)
		spec.Inside = &Inside{Network: network}
		inside := strings.Fields(string(mustRun(t, spec).Stdout.Head))
		for i, n := range []string{"pid", "ipc", "mnt", "net"} {
			own, err := os.Readlink("/proc/self/ns/" + n)
			if err != nil || len(inside) != 4 {
				t.Fatal(err, inside)
			}
			if same := own == inside[i]; same != (n == "net" && !network) {
				t.Errorf("network %t: %s inside, %s outside", network, inside[i], own)
			}
		}
	}
	// What is mounted there is mounted there alone.
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Count(string(b), " /proc ") > 1 {
		t.Errorf("another /proc is mounted outside:\n%s", b)
	}
}

// A call that is given up before its process begins ran nothing.
func TestInsideGivenUp(t *testing.T) {
	needNamespaces(t)
	for range 20 {
		made := filepath.Join(t.TempDir(), "made")
		ctx, cancel := context.WithCancel(t.Context())
		spec := sh(t, "echo >"+made+"; sleep 1000")
		spec.Inside = &Inside{}
		spec.Grace = 20 * time.Millisecond
		go cancel()
		res, err := Run(ctx, spec)
		if _, no := os.Stat(made); err != nil && no == nil {
			t.Errorf("it ran: %v", err)
		}
		if err != nil && !errors.Is(err, context.Canceled) || err == nil && res.Stopped != Cancelled {
			t.Errorf("got %+v, %v", res, err)
		}
	}
}

// When the gateway is killed, all that is inside dies with it, whatever it did to hide.
func TestInsideDiesWithTheGateway(t *testing.T) {
	needNamespaces(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	word := "4" + strconv.Itoa(os.Getpid())
	cmd := exec.Command(exe, dir, `(trap "" TERM; cd /; setsid setsid sleep `+word+` </dev/null >/dev/null 2>&1 &); echo >`+dir+`/ready; exec sleep `+word)
	cmd.Env = helperEnv("inside")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the processes are there", func() bool {
		_, err := os.Stat(filepath.Join(dir, "ready"))
		return err == nil && sleeping(word) == 2
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	until(t, "all of them have died", func() bool { return sleeping(word) == 0 })
	until(t, "the init, which has come to this process, is reaped", func() bool {
		_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		return errors.Is(err, unix.ECHILD)
	})
}

// sleeping counts the processes with a word in their command lines, as an argument.
func sleeping(word string) (n int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && bytes.HasPrefix(b, []byte("sleep\x00"+word+"\x00")) {
			n++
		}
	}
	return n
}

// An init that is killed takes the process with it, which is what the result says.
func TestInsideInitIsKilled(t *testing.T) {
	needNamespaces(t)
	spec := sh(t, "exec sleep 1000")
	spec.Inside = &Inside{}
	done := make(chan Result)
	go func() {
		res, err := Run(t.Context(), spec)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	// The init is the process in the private folder that has this program's name.
	until(t, "the init could be killed", func() bool {
		cwds, _ := filepath.Glob("/proc/[0-9]*/cwd")
		for _, cwd := range cwds {
			to, _ := os.Readlink(cwd)
			line, _ := os.ReadFile(filepath.Dir(cwd) + "/cmdline")
			if filepath.Dir(to) != spec.Scratch || !bytes.HasPrefix(line, []byte(initName)) {
				continue
			}
			for _, p := range mustProcesses(t) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(cwd)))
				if p.ppid == pid && p.name == "sleep" {
					return unix.Kill(pid, unix.SIGKILL) == nil
				}
			}
		}
		return false
	})
	if res := <-done; res.Signal != syscall.SIGKILL || res.Stopped != NotStopped || res.Unknown {
		t.Errorf("got %+v", res)
	}
}

func mustProcesses(t *testing.T) []stat {
	t.Helper()
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Many at once do not mix, and leave nothing.
func TestManyInside(t *testing.T) {
	needNamespaces(t)
	fds := func() int {
		names, _ := os.ReadDir("/proc/self/fd")
		return len(names)
	}
	before := fds()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			spec := sh(t, fmt.Sprintf("cat; echo run %d; exit %d", i, i))
			spec.Inside, spec.Stdin = &Inside{Network: true}, []byte(strconv.Itoa(i))
			res, err := Run(t.Context(), spec)
			if want := fmt.Sprintf("%drun %d\n", i, i); err != nil || res.Exit != i || string(res.Stdout.Head) != want {
				t.Errorf("got %+v, %v; want %s", res, err, want)
			}
		})
	}
	wg.Wait()
	if after := fds(); after > before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
	for _, p := range mustProcesses(t) {
		if p.ppid == os.Getpid() {
			t.Errorf("%s (%d) is left", p.name, p.pid)
		}
	}
}

// A gateway of an ordinary user makes them in a user namespace, and so does one of root
// that may not make them outright.
func TestInsideAsOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root starts the tests of others")
	}
	dir, err := os.MkdirTemp("/tmp", "inband-others-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, self, 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, before := range map[string][]string{
		"nobody":                     {"--reuid", "65534", "--regid", "65534", "--clear-groups"},
		"root without CAP_SYS_ADMIN": {"--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"},
	} {
		t.Run(name, func(t *testing.T) {
			mine := filepath.Join(dir, strings.Fields(name)[0])
			if err := os.Mkdir(mine, 0o700); err != nil {
				t.Fatal(err)
			}
			if name == "nobody" {
				if err := os.Chown(mine, 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("/usr/bin/setpriv", append(before, program, "-test.run", "Inside|WhatAProcessGets", "-test.skip", "InsideAsOthers", "-test.v", "-test.timeout", "5m")...)
			cmd.Dir, cmd.Env = mine, []string{"PATH=/usr/bin:/bin", "TMPDIR=" + mine}
			out, err := cmd.CombinedOutput()
			if err != nil || bytes.Contains(out, []byte("no namespaces here")) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// BenchmarkInside alternates between a process outside and one inside, and prints both.
func BenchmarkInside(b *testing.B) {
	needNamespaces(b)
	const rounds = 200
	var out, in, net []time.Duration
	for range rounds {
		for _, c := range []struct {
			inside *Inside
			to     *[]time.Duration
		}{{nil, &out}, {&Inside{}, &in}, {&Inside{Network: true}, &net}} {
			start := time.Now()
			res, err := Run(b.Context(), Spec{Argv: []string{"/bin/echo", "hello"}, Timeout: time.Minute, OutputMax: 100, Inside: c.inside,
				Env: []string{"LANG=C.UTF-8"}})
			if err != nil || res.Exit != 0 {
				b.Fatal(res, err)
			}
			*c.to = append(*c.to, time.Since(start))
		}
	}
	for _, all := range [][]time.Duration{out, in, net} {
		slices.Sort(all)
	}
	fmt.Printf("outside %d µs, in namespaces %d µs, with a network %d µs (medians of %d)\n",
		out[rounds/2].Microseconds(), in[rounds/2].Microseconds(), net[rounds/2].Microseconds(), rounds)
	for b.Loop() { // the figures above are the benchmark
	}
}

// insideHelper is the mode "inside": a gateway that runs a script in namespaces.
func insideHelper(args []string) {
	res, err := Run(testContext, Spec{Argv: []string{"/bin/sh", "-c", args[1]}, Env: []string{"PATH=/usr/bin:/bin"}, Scratch: args[0], Timeout: time.Hour, OutputMax: 100, Inside: &Inside{Network: true}})
	_ = json.NewEncoder(os.Stdout).Encode(fmt.Sprint(res, err))
}
