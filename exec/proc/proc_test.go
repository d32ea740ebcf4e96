package proc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var testContext = context.Background()

// self is a Spec that runs the helper mode of this test binary.
func self(t testing.TB, mode string, args ...string) Spec {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Argv: append([]string{exe}, args...), Env: helperEnv(mode), Scratch: t.TempDir(),
		Timeout: time.Minute, OutputMax: 64 << 10}
}

func mustRun(t testing.TB, spec Spec) Result {
	t.Helper()
	res, err := Run(t.Context(), spec)
	if err != nil {
		t.Fatalf("Run(%q): %v", spec.Argv, err)
	}
	if res.Unknown || res.Folder != nil || res.Survivors != 0 {
		res.Stdout.Head, res.Stderr.Head, res.Stdout.Tail, res.Stderr.Tail = nil, nil, nil, nil
		t.Fatalf("Run(%q): %+v", spec.Argv, res)
	}
	return res
}

// bothWays runs f with the fence, where the kernel has it, and with the sweep.
func bothWays(t *testing.T, f func(t *testing.T)) {
	mustRun(t, self(t, "exit", "0")) // learn what the kernel has
	t.Run("fence", func(t *testing.T) {
		if !fenceable {
			t.Skip("the kernel has no Landlock signal scope")
		}
		f(t)
	})
	t.Run("sweep", func(t *testing.T) {
		noFence = true
		defer func() { noFence = false }()
		f(t)
	})
}

// everyWay runs f bothWays, and with a function that puts a Spec into namespaces.
func everyWay(t *testing.T, f func(t *testing.T, put func(Spec) Spec)) {
	bothWays(t, func(t *testing.T) { f(t, func(s Spec) Spec { return s }) })
	t.Run("inside", func(t *testing.T) {
		needNamespaces(t)
		bothWays(t, func(t *testing.T) { f(t, func(s Spec) Spec { s.Inside = &Inside{Network: true}; return s }) })
	})
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	p, ok := parseStat(pid, b)
	return ok && p.state != 'Z'
}

// until waits for a condition, a minute at most.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

func TestWhatAProcessGets(t *testing.T) {
	// A descriptor without close-on-exec, as one inherited at start would be.
	leak, err := unix.Open("/etc", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	t.Setenv("GATEWAY_SECRET", "must not be seen")

	everyWay(t, func(t *testing.T, put func(Spec) Spec) {
		spec := put(self(t, "report", "a b", "$(id)", ";id", "*", ""))
		spec.Env = append(spec.Env, "LANG=C.UTF-8")
		spec.Stdin = []byte("in\x00put")
		res := mustRun(t, spec)
		var r report
		if err := json.Unmarshal(res.Stdout.Head, &r); err != nil {
			t.Fatalf("%v: %s %s", err, res.Stdout.Head, res.Stderr.Head)
		}
		if want := spec.Argv[1:]; !slices.Equal(r.Args, want) {
			t.Errorf("args: got %q, want %q", r.Args, want)
		}
		if !slices.Equal(r.Env, spec.Env) {
			t.Errorf("environment: got %q, want %q", r.Env, spec.Env)
		}
		if len(r.Fds) != 3 {
			t.Errorf("descriptors: got %q, want 0, 1 and 2", r.Fds)
		}
		if filepath.Dir(r.Dir) != spec.Scratch || r.DirMode != "-rwx------" {
			t.Errorf("folder: got %s %s, want a private one in %s", r.Dir, r.DirMode, spec.Scratch)
		}
		if _, err := os.Stat(r.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("folder %s is still there: %v", r.Dir, err)
		}
		if r.Umask != 0o077 {
			t.Errorf("umask: got %03o, want 077", r.Umask)
		}
		if r.SID != r.PID || r.Terminal {
			t.Errorf("session %d of process %d, terminal %t: want its own and none", r.SID, r.PID, r.Terminal)
		}
		if r.Stdin != "in\x00put" {
			t.Errorf("stdin: got %q", r.Stdin)
		}
		if !strings.Contains(r.Status, "NoNewPrivs:\t1") {
			t.Error("no_new_privs is not set")
		}
		if res.Exit != 0 || res.Signal != 0 || res.Stopped != NotStopped || res.Ended.Before(res.Started) {
			t.Errorf("result: %+v", res)
		}
	})
	if old := unix.Umask(0o022); old == 0o077 {
		t.Error("the umask of the gateway itself has changed")
	} else {
		unix.Umask(old)
	}
}

// The private folder is where its Spec, the environment and the machine say, in this
// order.
func TestScratch(t *testing.T) {
	t.Setenv("TMPDIR", "")
	if got := scratch(Spec{Scratch: "/srv"}); got != "/srv" {
		t.Errorf("named: got %q", got)
	}
	spec := self(t, "report")
	spec.Scratch = ""
	var r report
	if err := json.Unmarshal(mustRun(t, spec).Stdout.Head, &r); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC || fs.Bavail*uint64(fs.Bsize) < 1<<30 {
		t.Skip("no memory to put a folder into")
	}
	if filepath.Dir(r.Dir) != "/dev/shm" || r.DirMode != "-rwx------" {
		t.Errorf("by default: got %s %s", r.Dir, r.DirMode)
	}
	t.Setenv("TMPDIR", t.TempDir())
	if err := json.Unmarshal(mustRun(t, spec).Stdout.Head, &r); err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(r.Dir) != os.Getenv("TMPDIR") {
		t.Errorf("with TMPDIR: got %s", r.Dir)
	}
}

func TestStdinIsEmptyByDefault(t *testing.T) {
	var r report
	if err := json.Unmarshal(mustRun(t, self(t, "report")).Stdout.Head, &r); err != nil {
		t.Fatal(err)
	}
	if r.Stdin != "" || !slices.Contains(r.Fds, "0 /dev/null") {
		t.Errorf("got stdin %q of %q, want /dev/null", r.Stdin, r.Fds)
	}
}

func TestStdinLargerThanAPipe(t *testing.T) {
	spec := self(t, "report")
	spec.Stdin = bytes.Repeat([]byte("x"), 300<<10)
	spec.OutputMax = 1 << 20
	var r report
	if err := json.Unmarshal(mustRun(t, spec).Stdout.Head, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Stdin) != len(spec.Stdin) {
		t.Errorf("the process read %d bytes, want %d", len(r.Stdin), len(spec.Stdin))
	}
	// One that does not read its input is no trouble.
	spec = self(t, "exit", "0")
	spec.Stdin = bytes.Repeat([]byte("x"), 300<<10)
	mustRun(t, spec)
}

func TestHowItEnded(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		if res := mustRun(t, self(t, "exit", "7")); res.Exit != 7 || res.Signal != 0 {
			t.Errorf("exit 7: got %+v", res)
		}
		if res := mustRun(t, self(t, "kill", "9")); res.Exit != -1 || res.Signal != syscall.SIGKILL || res.Stopped != NotStopped {
			t.Errorf("killed by itself: got %+v", res)
		}
	})
}

func TestRefusals(t *testing.T) {
	good := Spec{Argv: []string{"/bin/true"}, Timeout: time.Second, OutputMax: 1}
	for name, change := range map[string]func(*Spec){
		"no argv":           func(s *Spec) { s.Argv = nil },
		"empty program":     func(s *Spec) { s.Argv = []string{""} },
		"relative":          func(s *Spec) { s.Argv = []string{"true"} },
		"not clean":         func(s *Spec) { s.Argv = []string{"/bin/../bin/true"} },
		"NUL in a word":     func(s *Spec) { s.Argv = append(s.Argv, "a\x00b") },
		"NUL in a variable": func(s *Spec) { s.Env = []string{"A=\x00"} },
		"no name":           func(s *Spec) { s.Env = []string{"=x"} },
		"no value":          func(s *Spec) { s.Env = []string{"A"} },
		"no time":           func(s *Spec) { s.Timeout = 0 },
		"negative time":     func(s *Spec) { s.Timeout = -1 },
		"negative grace":    func(s *Spec) { s.Grace = -1 },
		"no output":         func(s *Spec) { s.OutputMax = 0 },
		"missing program":   func(s *Spec) { s.Argv = []string{"/nonexistent/program"} },
		"a folder":          func(s *Spec) { s.Argv = []string{"/etc"} },
		"not executable":    func(s *Spec) { s.Argv = []string{"/etc/passwd"} },
		"missing scratch":   func(s *Spec) { s.Scratch = "/nonexistent" },
	} {
		t.Run(name, func(t *testing.T) {
			spec := good
			spec.Scratch = t.TempDir()
			scratch := spec.Scratch
			change(&spec)
			res, err := Run(t.Context(), spec)
			var start *StartError
			if !errors.As(err, &start) {
				t.Fatalf("got %+v, %v; want a StartError", res, err)
			}
			if left, _ := os.ReadDir(scratch); len(left) != 0 {
				t.Errorf("left behind in the scratch folder: %v", left)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var start *StartError
	if _, err := Run(ctx, good); !errors.As(err, &start) || !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: got %v, want a StartError of it", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	for _, c := range []struct{ out, errs, max, wantOut, wantErr int64 }{
		{0, 0, 100, 0, 0},
		{100, 0, 100, 100, 0},
		{0, 100, 100, 0, 100},
		{60, 40, 100, 60, 40},
		{101, 0, 100, 100, 0},
		{1 << 20, 1 << 20, 1000, 750, 250},
		{1 << 20, 10, 1000, 990, 10},
		{10, 1 << 20, 1000, 10, 990},
		{1 << 20, 0, 1, 1, 0},
	} {
		spec := self(t, "write", strconv.FormatInt(c.out, 10), strconv.FormatInt(c.errs, 10))
		spec.OutputMax = c.max
		res := mustRun(t, spec)
		if res.Stdout.Total() != c.out || res.Stderr.Total() != c.errs {
			t.Errorf("%+v: totals %d and %d", c, res.Stdout.Total(), res.Stderr.Total())
		}
		gotOut, gotErr := c.out-res.Stdout.Dropped, c.errs-res.Stderr.Dropped
		if gotOut != c.wantOut || gotErr != c.wantErr || res.Truncated() != (c.out+c.errs > c.max) {
			t.Errorf("%+v: kept %d and %d, truncated %t", c, gotOut, gotErr, res.Truncated())
		}
		for _, s := range []struct {
			size int64
			got  [sha256.Size]byte
		}{{c.out, res.Stdout.SHA256}, {c.errs, res.Stderr.SHA256}} {
			if want := sha256.Sum256(bytes.Repeat([]byte("0123456789abcdef"), 1<<16)[:s.size]); s.got != want {
				t.Errorf("%+v: %d bytes have the digest %x, want %x", c, s.size, s.got, want)
			}
		}
	}
}

// The collector agrees with keeping everything and cutting afterwards.
func TestCollector(t *testing.T) {
	text := strings.Repeat("0123456789", 9) + "é€𝄞" + strings.Repeat("abcdefghij", 9)
	for limit := 1; limit < 220; limit += 3 {
		for piece := 1; piece < 60; piece += 7 {
			c := newCollector(int64(limit))
			for rest := []byte(text); len(rest) > 0; {
				n := min(piece, len(rest))
				c.Write(rest[:n])
				rest = rest[n:]
			}
			for cut := 1; cut <= limit; cut += 5 {
				c := c
				c.head = bytes.Clone(c.head)
				o := c.output(cut)
				if !strings.HasPrefix(text, string(o.Head)) || !strings.HasSuffix(text, string(o.Tail)) || o.Total() != int64(len(text)) {
					t.Fatalf("limit %d, pieces of %d, cut %d: %q … %d … %q", limit, piece, cut, o.Head, o.Dropped, o.Tail)
				}
				if o.SHA256 != sha256.Sum256([]byte(text)) {
					t.Fatalf("limit %d, cut %d: the digest is not that of the whole", limit, cut)
				}
				if strings.ToValidUTF8(string(o.Head), "") != string(o.Head) || strings.ToValidUTF8(string(o.Tail), "") != string(o.Tail) {
					t.Fatalf("limit %d, cut %d: cut inside a character: %q %q", limit, cut, o.Head, o.Tail)
				}
				if kept := len(o.Head) + len(o.Tail); kept > cut || kept < min(cut, len(text))-6 {
					t.Fatalf("limit %d, cut %d: kept %d", limit, cut, kept)
				}
			}
		}
	}
}

func TestAFloodTakesNoMemory(t *testing.T) {
	size := int64(2_000_000_000)
	if testing.Short() {
		size = 200_000_000
	}
	spec := self(t, "write", strconv.FormatInt(size, 10), "0")
	spec.OutputMax = 1 << 20
	spec.Timeout = 10 * time.Minute
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res := mustRun(t, spec)
	runtime.ReadMemStats(&after)
	if res.Stdout.Total() != size || res.Exit != 0 {
		t.Errorf("got %d bytes, exit %d; want %d and 0", res.Stdout.Total(), res.Exit, size)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("%d bytes of output allocated %d bytes, want at most 16 MiB", size, grown)
	}
}

func TestDeadlineAndCancel(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		for _, c := range []struct {
			mode string
			sig  syscall.Signal
		}{{"stay", syscall.SIGTERM}, {"stubborn", syscall.SIGKILL}} {
			spec := self(t, c.mode)
			spec.Timeout, spec.Grace = 100*time.Millisecond, 50*time.Millisecond
			if c.mode == "stay" {
				spec.Grace = time.Minute
			}
			res := mustRun(t, spec)
			// A process that had not yet come to ignore SIGTERM dies of it.
			if res.Stopped != Deadline || res.Signal != c.sig && res.Signal != syscall.SIGTERM {
				t.Errorf("deadline, %s: got %+v", c.mode, res)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan Result)
		spec := self(t, "pidfile")
		pidfile := filepath.Join(t.TempDir(), "pid")
		spec.Env = append(spec.Env, "PIDFILE="+pidfile)
		go func() {
			res, err := Run(ctx, spec)
			if err != nil {
				t.Error(err)
			}
			done <- res
		}()
		pid := readPID(t, pidfile)
		cancel()
		if res := <-done; res.Stopped != Cancelled || alive(pid) {
			t.Errorf("cancelled: got %+v, alive %t", res, alive(pid))
		}
	})
}

func readPID(t *testing.T, file string) (pid int) {
	t.Helper()
	until(t, "the process has written its pid", func() bool {
		b, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(string(b))
		return pid > 0
	})
	return pid
}

// When Run returns, nothing of its tree is left, whatever a descendant did to
// hide, and whether the process ended by itself or was stopped.
func TestTheTreeEndsWithItsRun(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		for _, how := range []string{"child", "setsid", "orphan", "hidden"} {
			for _, then := range []string{"exit", "stay"} {
				spec := self(t, "family", how, then)
				spec.Grace = 20 * time.Millisecond
				pidfile := filepath.Join(t.TempDir(), "pid")
				spec.Env = append(spec.Env, "PIDFILE="+pidfile)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan Result, 1)
				go func() {
					res, err := Run(ctx, spec)
					if err != nil || res.Unknown || res.Survivors != 0 {
						t.Errorf("%s, %s: %+v, %v", how, then, res, err)
					}
					done <- res
				}()
				pid := readPID(t, pidfile)
				if then == "stay" {
					cancel()
				}
				res := <-done
				cancel()
				if alive(pid) {
					t.Errorf("%s, %s: process %d outlived its run", how, then, pid)
				}
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
					t.Errorf("%s, %s: process %d was not reaped", how, then, pid)
				}
				switch then {
				case "exit":
					if res.Exit != 0 || res.Stopped != NotStopped || len(res.LeftBehind) != 1 {
						t.Errorf("%s, exit: got %+v, want a success that mentions one process", how, res)
					}
				case "stay":
					if res.Stopped != Cancelled || res.LeftBehind != nil {
						t.Errorf("%s, stay: got %+v", how, res)
					}
				}
			}
		}
	})
}

// A process that was made beside the run's, a child of the gateway's thread at once, ends
// with the run too.
func TestTheOneBesideEndsToo(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		spec := self(t, "beside")
		pidfile := filepath.Join(t.TempDir(), "pid")
		spec.Env = append(spec.Env, "PIDFILE="+pidfile)
		res := mustRun(t, spec)
		if pid := readPID(t, pidfile); alive(pid) || len(res.LeftBehind) != 1 {
			t.Errorf("process %d, alive %t, left behind %v", pid, alive(pid), res.LeftBehind)
		}
	})
}

// A run that ends takes its own descendants and no others.
func TestTwoRunsAtOnce(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		hows := []string{"child", "setsid", "orphan"}
		if fenceable && !noFence {
			hows = append(hows, "hidden") // the sweep does not promise this one
		}
		for _, how := range hows {
			ctx, cancel := context.WithCancel(t.Context())
			spec := self(t, "family", how, "stay")
			spec.Grace = 20 * time.Millisecond
			done := make(chan Result, 1)
			go func() {
				res, _ := Run(ctx, spec)
				done <- res
			}()
			// The grandchild of the long run, by its parent or its command line.
			var pid int
			until(t, "the grandchild is there", func() bool {
				pid = stubbornIn(spec.Scratch, how)
				return pid != 0
			})
			for _, other := range []string{"setsid", "orphan"} {
				res := mustRun(t, self(t, "family", other, "exit"))
				if len(res.LeftBehind) != 1 {
					t.Errorf("%s beside %s: left behind %v, want its own one", other, how, res.LeftBehind)
				}
				if !alive(pid) {
					t.Errorf("the end of a run with %s took the %s of another", other, how)
				}
			}
			cancel()
			res := <-done
			if res.Stopped != Cancelled || alive(pid) {
				t.Errorf("%s: got %+v, alive %t", how, res, alive(pid))
			}
		}
	})
}

// stubbornIn finds the process of mode stubborn that belongs to the run with
// this scratch folder.
func stubbornIn(scratch, how string) int {
	all, err := processes()
	if err != nil {
		panic(err)
	}
	for _, p := range all {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if !bytes.Contains(env, []byte("PROC_HELPER=stubborn\x00")) || p.state == 'Z' {
			continue
		}
		cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
		orphan := p.ppid == os.Getpid()
		if how == "hidden" && cwd == "/" && orphan ||
			strings.HasPrefix(cwd, scratch+"/") && orphan == (how == "orphan") {
			return p.pid
		}
	}
	return 0
}

func TestNoSignalLeavesTheTree(t *testing.T) {
	mustRun(t, self(t, "exit", "0"))
	if !fenceable {
		t.Skip("the kernel has no Landlock signal scope")
	}
	res := mustRun(t, self(t, "signal", strconv.Itoa(os.Getpid())))
	if got := string(res.Stdout.Head); got != syscall.EPERM.Error() {
		t.Errorf("signalling the gateway from a run: %s, want %s", got, syscall.EPERM.Error())
	}
}

func TestTheGatewaysDeathEndsItsProcess(t *testing.T) {
	exe, _ := os.Executable()
	pidfile := filepath.Join(t.TempDir(), "pid")
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	daemon, err := os.StartProcess(exe, []string{exe, "pidfile"}, &os.ProcAttr{
		Env: append(helperEnv("daemon"), "PIDFILE="+pidfile), Files: []*os.File{null, null, null}})
	if err != nil {
		t.Fatal(err)
	}
	pid := readPID(t, pidfile)
	if !alive(pid) {
		t.Fatalf("process %d is not alive", pid)
	}
	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	daemon.Wait()
	until(t, "the process has died with the gateway", func() bool { return !alive(pid) })
}

// Threads come and go under the runs (golang/go#27505): no process dies of it,
// no descriptor and no thread stays.
func TestManyAtOnce(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		count := func() (fds int) {
			names, _ := os.ReadDir("/proc/self/fd")
			return len(names)
		}
		before := count()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range 6 {
					word := fmt.Sprintf("run %d.%d", i, j)
					res, err := Run(t.Context(), Spec{Argv: []string{"/bin/echo", word}, Scratch: t.TempDir(), Timeout: time.Minute, OutputMax: 100})
					if err != nil || res.Exit != 0 || string(res.Stdout.Head) != word+"\n" {
						t.Errorf("%s: got %+v, %v", word, res, err)
					}
				}
			})
			wg.Go(func() {
				for range 20 {
					onOwnThread(func() {})
				}
			})
		}
		wg.Wait()
		if after := count(); after > before {
			t.Errorf("%d descriptors open, %d before", after, before)
		}
		if len(sweeps) != 0 {
			t.Errorf("runs still entered: %v", sweeps)
		}
	})
}

func TestAFolderWithoutRightsIsRemoved(t *testing.T) {
	spec := self(t, "locked")
	mustRun(t, spec)
	if left, _ := os.ReadDir(spec.Scratch); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestKeep(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		spec := self(t, "locked")
		for _, tc := range []struct {
			argv []string
			want int // what it exits with
			made string
		}{
			{[]string{"/usr/bin/touch", "made"}, 0, "made"},
			{[]string{"/usr/bin/cp", "/nothing.there", "made"}, 1, ""},
		} {
			calls, made := 0, ""
			spec.Path, spec.Argv = "", tc.argv
			spec.Keep = func(folder *os.Root, r Result) {
				calls++
				if r.Exit != tc.want || r.Unknown || r.Ended.IsZero() {
					t.Errorf("%q: it is told %+v", tc.argv, r)
				}
				entries, err := fs.ReadDir(folder.FS(), ".")
				if err != nil {
					t.Errorf("%q: %v", tc.argv, err)
				}
				for _, e := range entries {
					made += e.Name()
				}
			}
			mustRun(t, spec)
			if calls != 1 || made != tc.made {
				t.Errorf("%q: called %d times, sees %q", tc.argv, calls, made)
			}
		}
		// What never ran leaves nothing to keep.
		spec.Argv, spec.Keep = []string{"/nothing.there"}, func(*os.Root, Result) { t.Error("called though nothing ran") }
		if _, err := Run(t.Context(), spec); err == nil {
			t.Error("no error")
		}
		// A panic leaves nothing behind.
		spec.Argv, spec.Keep = []string{"/usr/bin/touch", "made"}, func(*os.Root, Result) { panic("on purpose") }
		func() {
			defer func() {
				if p := recover(); p != "on purpose" {
					t.Errorf("recovered %v", p)
				}
			}()
			_, _ = Run(t.Context(), spec)
		}()
		if left, _ := os.ReadDir(spec.Scratch); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func TestAttribute(t *testing.T) {
	// 1 is init, 10 the gateway in session 5, 20 and 30 the first processes of two
	// runs, 21 a child, 22 a setsid child of it, 23 in 20's session but adopted,
	// 40 an orphan with 30's mark, 41 one with no mark, 42 one older than the run,
	// 43 a child that the gateway started otherwise.
	all := []stat{
		{pid: 1}, {pid: 10, ppid: 1, sid: 5},
		{pid: 20, ppid: 10, sid: 20, start: 100}, {pid: 30, ppid: 10, sid: 30, start: 110},
		{pid: 21, ppid: 20, sid: 20}, {pid: 22, ppid: 21, sid: 22}, {pid: 23, ppid: 10, sid: 20},
		{pid: 31, ppid: 30, sid: 31}, {pid: 32, ppid: 31, sid: 31},
		{pid: 40, ppid: 10, sid: 40, start: 120}, {pid: 41, ppid: 10, sid: 41, start: 120},
		{pid: 42, ppid: 10, sid: 42, start: 90}, {pid: 43, ppid: 10, sid: 5, start: 120},
		{pid: 50, ppid: 51, sid: 50}, {pid: 51, ppid: 50, sid: 50}, // a ring
		{pid: 60, ppid: 1, sid: 60},
	}
	roots := map[int]bool{20: true, 30: true}
	claims := func(pid int) int { return map[int]int{40: 30}[pid] }
	for root, want := range map[int][]int{20: {20, 21, 22, 23, 41}, 30: {30, 31, 32, 40, 41}} {
		var got []int
		since := map[int]uint64{20: 100, 30: 110}[root]
		for _, p := range attribute(all, 10, root, since, roots, claims) {
			got = append(got, p.pid)
		}
		if !slices.Equal(got, want) {
			t.Errorf("tree of %d: got %v, want %v", root, got, want)
		}
	}
}

func TestParseStat(t *testing.T) {
	rest := " S 7 8 9 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0"
	p, ok := parseStat(3, []byte("3 (a) b) (c)"+rest))
	if want := (stat{3, 7, 9, 'S', 4242, "a) b) (c"}); !ok || p != want {
		t.Errorf("got %+v, want %+v", p, want)
	}
	for _, bad := range []string{"", "3", "3 (x", ")3 (", "3 (x) S", "3 (x) S a b c" + strings.Repeat(" 0", 20)} {
		if _, ok := parseStat(3, []byte(bad)); ok {
			t.Errorf("%q is taken for a stat line", bad)
		}
	}
}

// The hooks are called before the program's first instruction: Confine on the thread
// that starts it, Limit while it stands. An error of either is a start that was none.
func TestConfineAndLimit(t *testing.T) {
	var folder, state string
	var confined, limited int
	spec := Spec{Argv: []string{"/bin/pwd"}, Timeout: time.Minute, OutputMax: 1000,
		Confine: func(f string) error {
			folder, confined = f, unix.Gettid()
			return nil
		},
		Limit: func(pid int) error {
			limited = unix.Gettid()
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if p, ok := parseStat(pid, b); ok {
				state = string(p.state) + " " + p.name
			}
			return err
		}}
	res, err := Run(t.Context(), spec)
	if err != nil || res.Exit != 0 || strings.TrimSpace(string(res.Stdout.Head)) != folder {
		t.Errorf("got %+v, %v; the folder is %q", res, err, folder)
	}
	if state != "t pwd" {
		t.Errorf("in Limit the process is %q, want it stopped in its program", state)
	}
	if confined == os.Getpid() || limited == confined {
		t.Errorf("Confine on thread %d, Limit on thread %d of %d", confined, limited, os.Getpid())
	}

	no := errors.New("no")
	killed := 0
	spec.Limit = func(pid int) error { killed = pid; return no }
	var start *StartError
	if res, err := Run(t.Context(), spec); !errors.As(err, &start) || !errors.Is(err, no) {
		t.Errorf("Limit fails: got %+v, %v", res, err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the private folder is left: %v", err)
	}
	spec.Confine, spec.Limit = func(string) error { return no }, func(int) error { t.Error("Limit after Confine failed"); return nil }
	if res, err := Run(t.Context(), spec); !errors.As(err, &start) || !errors.Is(err, no) {
		t.Errorf("Confine fails: got %+v, %v", res, err)
	}
	if err := unix.Kill(killed, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d, whose Limit failed, is left: %v", killed, err)
	}
}

// A thread that can open nothing any more ends the whole tree all the same.
func TestBlindThreadEndsTheTree(t *testing.T) {
	for _, how := range []string{"child", "setsid", "orphan", "hidden"} {
		for _, then := range []string{"exit", "stay"} {
			t.Run(how+" "+then, func(t *testing.T) {
				t.Parallel()
				pidfile := filepath.Join(t.TempDir(), "pid")
				spec := self(t, "family", how, then)
				spec.Env = append(spec.Env, "PIDFILE="+pidfile)
				spec.Timeout = 5 * time.Second
				spec.Confine = func(string) error { return blind(filepath.Dir(pidfile)) }
				res, err := Run(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				if pid := readPID(t, pidfile); alive(pid) {
					t.Errorf("the grandchild %d lives: %+v", pid, res)
				}
			})
		}
	}
}

// blind takes /proc from the calling thread, by a Landlock domain in which everything
// else may be read and executed.
func blind(writable string) error {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(fd))
	for _, dir := range []string{"/usr", "/lib", "/lib64", "/etc", "/dev", "/tmp", "/root", writable} {
		at, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		rule := unix.LandlockPathBeneathAttr{Allowed_access: attr.Handled_access_fs, Parent_fd: int32(at)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
		unix.Close(at)
		if errno != 0 {
			return errno
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
