package task

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inband/exec/command"
	"inband/exec/proc"
	"inband/exec/sandbox"
)

// The test binary is also the program that the tests run: with TASK_HELPER set it does
// what that says.
func TestMain(m *testing.M) {
	command.Canary()
	command.Helper()
	if mode := os.Getenv("TASK_HELPER"); mode != "" {
		helper(mode, os.Args[1:])
		return
	}
	goleak.VerifyTestMain(m)
}

// report is what the helper "report" says of its own circumstances.
type circumstances struct {
	Env, Fds []string
	Dir      string
	UID      int
	Nice     int
	Files    map[string]string // what it could do with files that it was asked about
}

func helper(mode string, args []string) {
	switch mode {
	case "report": // report FILE...
		c := circumstances{Env: os.Environ(), UID: os.Getuid(), Files: map[string]string{}}
		c.Dir, _ = os.Getwd()
		for fd := range 64 {
			to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err == nil && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/sys/fs/cgroup") {
				c.Fds = append(c.Fds, fmt.Sprintf("%d %s", fd, strings.TrimRight(to, "[]0123456789")))
			}
		}
		c.Nice, _ = syscall.Getpriority(syscall.PRIO_PROCESS, 0) // 20 - nice
		for _, file := range args {
			can := ""
			if f, err := os.Open(file); err == nil {
				can += "r"
				f.Close()
			}
			if f, err := os.OpenFile(file, os.O_WRONLY, 0); err == nil {
				can += "w"
				f.Close()
			}
			if f, err := os.Create(filepath.Join(file, "made")); err == nil {
				can += "w"
				f.Close()
			}
			c.Files[file] = can
		}
		json.NewEncoder(os.Stdout).Encode(c)
	case "stubborn": // does not end on SIGTERM, nor do its children, each in a session of its own
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
		if n, _ := strconv.Atoi(args[0]); n > 0 {
			again("stubborn", strconv.Itoa(n-1))
		} else {
			fmt.Println("ready")
		}
		time.Sleep(time.Hour)
	case "forker": // from 0: one that stays; from 1: goes on as another process every 2 ms, in another session
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
		n, _ := strconv.Atoi(args[0])
		if n == 5 {
			fmt.Println("ready")
		}
		time.Sleep(2 * time.Millisecond)
		again("forker", strconv.Itoa(n+1))
		if n == 0 {
			time.Sleep(time.Hour)
		}
	case "spin": // 8 threads that compute, and a counter in the file of its argument
		for range 8 {
			go func() {
				runtime.LockOSThread()
				for n := 0; ; n++ {
				}
			}()
		}
		runtime.GOMAXPROCS(16)
		for n := 0; ; n++ {
			os.WriteFile(args[0], []byte(strconv.Itoa(n)), 0o600)
		}
	case "gone": // gone FOLDER: as the next life of a worker, say what is left
		r := enclosed()
		g, err := r.Gone(context.Background(), args[0])
		fmt.Printf("%s %v\n", g.Proof, err)
		if err := r.config.Enclosure.Close(); err != nil {
			panic(err)
		}
	case "worker": // worker FOLDER HOW MODE ARG...: run the helper MODE until killed
		runner := enclosed()
		if args[1] == "outside" {
			runner.namespaces = false
		}
		spec := helperSpec(args[0], args[2], args[3:]...)
		out, err := runner.Run(context.Background(), spec, Report{Progress: func(int64) { fmt.Println("under way") }})
		fmt.Println(out, err)
	default:
		panic(mode)
	}
}

// enclosed returns a Runner, in the cgroup of the name that the environment has.
func enclosed() *Runner {
	c := Config{Every: 10 * time.Millisecond}
	var err error
	if name := os.Getenv("TASK_ENCLOSE"); name != "" {
		if c.Enclosure, err = proc.Enclose(name); err != nil {
			panic(err)
		}
		if c.Enclosure.Cgroup == "" {
			fmt.Println("no cgroup")
		}
	}
	r, err := New(context.Background(), c)
	if err != nil {
		panic(err)
	}
	return r
}

// again starts this program in a session of its own.
func again(mode string, args ...string) {
	_, err := syscall.ForkExec("/proc/self/exe", append([]string{"again"}, args...), &syscall.ProcAttr{
		Env: append(os.Environ(), "TASK_HELPER="+mode), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}

// newFolder makes a run's folder as a worker does.
func newFolder(t testing.TB) string {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	makeFolders(t, folder)
	return folder
}

func makeFolders(t testing.TB, folder string) {
	for _, name := range []string{"task", "work", "out", "control"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// newSpec is a command in folder.
func newSpec(folder string, argv ...string) Spec {
	return Spec{Folder: folder, Work: filepath.Join(folder, "work"), Read: []string{filepath.Join(folder, "task")},
		Write: []string{filepath.Join(folder, "out"), filepath.Join(folder, "control")}, Progress: filepath.Join(folder, "control", "progress"),
		Argv: argv, Env: []string{"PATH=" + DefaultPath, "LANG=C.UTF-8"}, Deadline: time.Now().Add(time.Hour)}
}

// helperSpec is a helper in folder.
func helperSpec(folder, mode string, args ...string) Spec {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	s := newSpec(folder, append([]string{self}, args...)...)
	s.Env = append(s.Env, "TASK_HELPER="+mode, "GORACE=atexit_sleep_ms=0")
	return s
}

// onBothWays runs f with a Runner that has namespaces and with one that has none.
func onBothWays(t *testing.T, config Config, f func(t *testing.T, r *Runner)) {
	for _, inside := range []bool{true, false} {
		name := map[bool]string{true: "inside", false: "outside"}[inside]
		t.Run(name, func(t *testing.T) {
			r := newRunner(t, config)
			if inside && !r.namespaces {
				t.Skip("no namespaces here")
			}
			r.namespaces = inside
			f(t, r)
		})
	}
}

func newRunner(t testing.TB, config Config) *Runner {
	t.Helper()
	if config.Every == 0 {
		config.Every = 10 * time.Millisecond
	}
	if config.Grace == 0 {
		config.Grace = 100 * time.Millisecond
	}
	r, err := New(t.Context(), config)
	var missing *sandbox.MissingError
	if errors.As(err, &missing) {
		t.Skipf("no sandbox here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// living are the processes that a run has left, by another way than the package's own: who
// began with the run's HOME.
func living(t testing.TB, folder string) (all []int) {
	t.Helper()
	names, err := pids()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range names {
		if began(fmt.Sprintf("/proc/%d/environ", pid), "HOME="+folder+"/home") {
			if p, err := proc.Identify(pid); err == nil && p.Lives() {
				all = append(all, pid)
			}
		}
	}
	return all
}

// until reads lines until one is what is waited for.
func until(t testing.TB, lines *bufio.Scanner, want string) {
	t.Helper()
	for lines.Scan() {
		if lines.Text() == want {
			return
		}
	}
	t.Fatalf("no line %q: %v", want, lines.Err())
}
