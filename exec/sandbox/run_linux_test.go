package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inband/exec/proc"
	"inband/exec/sandbox"
)

// nobody is the user that a root gateway runs processes as.
var nobody = sandbox.User{Name: "nobody", UID: 65534, GID: 65534}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root runs processes as others")
	}
}

// shell is a policy under which a shell runs the programs of the system.
func shell() sandbox.Policy {
	return sandbox.Policy{Program: "/bin/sh", Read: []string{"/proc", "/etc"}, Exec: []string{"/usr/bin", "/bin"}}
}

// run runs a script under p.
func run(t *testing.T, p sandbox.Policy, script string) proc.Result {
	t.Helper()
	s, err := sandbox.New(p)
	if err != nil {
		t.Fatal(err)
	}
	scratch := "/tmp" // t.TempDir is root's alone
	spec := proc.Spec{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Scratch: scratch,
		Timeout: time.Minute, OutputMax: 64 << 10, Confine: s.Confine, Aside: s.Aside, Limit: s.Limit}
	if u := p.User; u != nil {
		spec.Owner = &proc.Owner{UID: u.UID, GID: u.GID}
	}
	res, err := proc.Run(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if res.Unknown || res.Folder != nil || res.Survivors != 0 {
		t.Fatalf("%s: %+v", script, res)
	}
	return res
}

// A process of another user has that user's ids and groups alone, no capability, and
// the whole sandbox; the gateway's other threads stay who they are.
func TestRunAs(t *testing.T) {
	asRoot(t)
	p := shell()
	p.User = &nobody
	p.Limits = sandbox.Limits{NoFile: 64, CPU: 5 * time.Second, Processes: 64}
	size := uint64(1 << 20)
	p.Limits.FSize = &size
	res := run(t, p, "id -u; id -g; id -G; cat /proc/self/status; cat /proc/self/limits; pwd; echo x > mine && ls -ln mine; echo >/dev/stderr; cat /etc/shadow")
	out := strings.Join(strings.Fields(string(res.Stdout.Head)), " ")
	for _, want := range []string{"65534 65534 65534 ", "Uid: 65534 65534 65534 65534", "Gid: 65534 65534 65534 65534", "Groups: NStgid",
		"CapInh: 0000000000000000 CapPrm: 0000000000000000 CapEff: 0000000000000000", "CapAmb: 0000000000000000",
		"NoNewPrivs: 1", "Seccomp: 2", "Max open files 64 64", "Max file size 1048576 1048576", "Max cpu time 5 5", "Max processes 64 64",
		"Max core file size 1 1", "-rw------- 1 65534 65534 2"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s\n%s", want, out, res.Stderr.Head)
		}
	}
	if !strings.Contains(string(res.Stderr.Head), "/etc/shadow: Permission denied") {
		t.Errorf("stderr: %s", res.Stderr.Head)
	}
	// The thread of the run is as the process was; it ends soon after it.
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		changed := changedThreads(t)
		if changed == "" {
			break
		}
		if time.Since(start) > 10*time.Second {
			t.Fatalf("threads of the gateway stay changed:\n%s", changed)
		}
	}
	s, err := sandbox.New(p)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Layers().RunAs, (sandbox.RunAs{Name: "nobody", UID: 65534, GID: 65534, GroupsCleared: true}); got != want {
		t.Errorf("layers: got %+v, want %+v", got, want)
	}
	if !slices.Contains(s.Layers().Limits, sandbox.Limit{Name: "processes", Value: 64}) {
		t.Errorf("layers: %+v", s.Layers().Limits)
	}
}

// changedThreads returns the status of each thread of this process that is not as root
// started it.
func changedThreads(t *testing.T) (changed string) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		b, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/status")
		if err == nil && (!strings.Contains(string(b), "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n") || !strings.Contains(string(b), "NoNewPrivs:\t0")) {
			changed += string(b)
		}
	}
	return changed
}

// The tree of another user ends as any other, and what it leaves behind is named.
func TestRunAsEnds(t *testing.T) {
	asRoot(t)
	p := shell()
	p.User = &nobody
	s, err := sandbox.New(p)
	if err != nil {
		t.Fatal(err)
	}
	spec := proc.Spec{Argv: []string{"/bin/sh", "-c", `trap "" TERM; setsid sleep 1047 & sleep 1047; sleep 1047`}, Env: []string{"PATH=/usr/bin:/bin"},
		Timeout: 200 * time.Millisecond, Grace: 50 * time.Millisecond, OutputMax: 1 << 10, Confine: s.Confine, Aside: s.Aside, Limit: s.Limit,
		Scratch: "/tmp", Owner: &proc.Owner{UID: nobody.UID, GID: nobody.GID}}
	res, err := proc.Run(t.Context(), spec)
	if err != nil || res.Stopped != proc.Deadline || res.Signal != syscall.SIGKILL || res.Survivors != 0 || res.Folder != nil {
		t.Errorf("got %+v, %v", res, err)
	}
	if left := running("1047"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if res := run(t, p, "setsid sleep 1048 & :"); res.Exit != 0 || len(res.LeftBehind) != 1 {
		t.Errorf("got %+v, want one process left behind", res)
	}
	// What only the owner could enter is removed all the same.
	p.Metadata = true
	run(t, p, "mkdir -p a/b; echo > a/b/c; chmod 0 a/b a")
}

// running returns the processes that have a word in their command lines.
func running(word string) (pids []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && slices.Contains(strings.Split(string(b), "\x00"), word) {
			pids = append(pids, name)
		}
	}
	return pids
}

// A script that forks without end stays within its limit and is gone afterwards; others
// start meanwhile.
func TestForkChain(t *testing.T) {
	asRoot(t)
	p := shell()
	p.User = &sandbox.User{Name: "daemon", UID: 1, GID: 1}
	p.Limits.Processes = 64
	s, err := sandbox.New(p)
	if err != nil {
		t.Fatal(err)
	}
	script := `f() { (sleep 1049 & f); sleep 1049; }; f`
	done := make(chan proc.Result)
	go func() {
		res, err := proc.Run(t.Context(), proc.Spec{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Scratch: "/tmp",
			Timeout: time.Second, Grace: 50 * time.Millisecond, OutputMax: 1 << 10, Confine: s.Confine, Aside: s.Aside, Limit: s.Limit, Owner: &proc.Owner{UID: 1, GID: 1}})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	most := 0
	q := shell()
	q.User = &nobody
	for {
		select {
		case res := <-done:
			if res.Stopped == proc.NotStopped && !strings.Contains(string(res.Stderr.Head), "fork") || res.Survivors != 0 {
				t.Errorf("got %+v %s", res, res.Stderr.Head)
			}
			if most == 0 || most > 64 {
				t.Errorf("at most %d processes at once, want 1 to 64", most)
			}
			if n := ofUser(1); n != 0 {
				t.Errorf("%d processes are left", n)
			}
			return
		default:
			most = max(most, ofUser(1))
			if res := run(t, q, "echo other"); string(res.Stdout.Head) != "other\n" {
				t.Errorf("another run: %+v", res)
			}
		}
	}
}

// ofUser counts the processes of a user.
func ofUser(uid int) (n int) {
	names, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(b), fmt.Sprintf("\nUid:\t%d\t", uid)) && !strings.Contains(string(b), "State:\tZ") {
			n++
		}
	}
	return n
}

func TestMissing(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*sandbox.Policy)
		want   []string // as root
	}{
		{"what is always applied", func(p *sandbox.Policy) { p.Require = []string{"landlock", "seccomp", "limits", "capabilities"} }, nil},
		{"run_as of nobody", func(p *sandbox.Policy) { p.Require, p.User = []string{"run_as"}, &nobody }, nil},
		{"run_as of the gateway", func(p *sandbox.Policy) { p.Require = []string{"run_as"} }, []string{"run_as"}},
		{"namespaces", func(p *sandbox.Policy) { p.Require = []string{"namespaces", "landlock"} }, []string{"namespaces"}},
		{"root's processes", func(p *sandbox.Policy) { p.Limits.Processes = 9 }, []string{"limits"}},
	} {
		p := shell()
		c.change(&p)
		s, err := sandbox.New(p)
		want := c.want
		if os.Geteuid() != 0 {
			if p.User != nil && p.User.UID != uint32(os.Geteuid()) {
				want = []string{"run_as"}
			}
			if p.Limits.Processes > 0 {
				want = nil // binds whoever is not root
			}
			if c.name == "run_as of nobody" {
				want = []string{"run_as"} // nobody already
			}
		}
		var missing *sandbox.MissingError
		switch {
		case want == nil && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case want != nil && !errors.As(err, &missing):
			t.Errorf("%s: got %v, %v; want %v missing", c.name, s, err, want)
		case want != nil && !slices.Equal(missing.Layers, want):
			t.Errorf("%s: got %v, want %v", c.name, missing.Layers, want)
		}
	}
	p := shell()
	p.Require = []string{"apparmor"}
	var missing *sandbox.MissingError
	if _, err := sandbox.New(p); err == nil || errors.As(err, &missing) {
		t.Errorf("an unknown layer: got %v, want an error that is not about this machine", err)
	}
}

// A gateway in a cgroup of its own says so, and so are its processes.
func TestCgroupIsReported(t *testing.T) {
	p := shell()
	p.Require = []string{sandbox.LayerCgroup}
	var missing *sandbox.MissingError
	if _, err := sandbox.New(p); !errors.As(err, &missing) || !slices.Equal(missing.Layers, p.Require) {
		t.Errorf("without: got %v", err)
	}
	e, err := proc.Enclose(fmt.Sprintf("sandbox%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	if e.Cgroup == "" {
		t.Skip(e.Why)
	}
	s, err := sandbox.New(p)
	if err != nil || !s.Layers().Cgroup {
		t.Fatalf("within: got %v", err)
	}
	if out := string(run(t, p, "cat /proc/self/cgroup").Stdout.Head); !strings.Contains(out, filepath.Base(e.Cgroup)) {
		t.Errorf("the process is in %s, want %s", out, e.Cgroup)
	}
}

// A gateway that is not root runs as itself and as nobody else.
func TestUserOfAnotherIsRefused(t *testing.T) {
	if os.Geteuid() == 0 { // which may
		again(t, &syscall.Credential{Uid: nobody.UID, Gid: nobody.GID}, t.Name())
		return
	}
	p := shell()
	p.User = &sandbox.User{Name: "daemon", UID: 1, GID: 1}
	var missing *sandbox.MissingError
	if _, err := sandbox.New(p); !errors.As(err, &missing) || !slices.Equal(missing.Layers, []string{sandbox.LayerRunAs}) {
		t.Errorf("got %v, want run_as missing", err)
	}
	p.User = &sandbox.User{Name: "me", UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	res := run(t, p, "cat /proc/self/status")
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(res.Stdout.Head), want) {
			t.Errorf("no %q in %s%s", want, res.Stdout.Head, res.Stderr.Head)
		}
	}
}

// The thread that launches is inside the Landlock domain of what it launches, and of its
// user: it must be out of reach otherwise, or a process could end the gateway.
func TestThreadIsOutOfReach(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []sandbox.Policy{
		{Program: exe, Read: []string{"/proc"}, Reads: true},
		{Program: exe, Read: []string{"/proc"}, Network: sandbox.AnyNetwork},
	} {
		s, err := sandbox.New(p)
		if err != nil {
			t.Fatal(err)
		}
		argv := []string{exe, "reach", ""}
		res, err := proc.Run(t.Context(), proc.Spec{Argv: argv, Scratch: "/tmp", Timeout: time.Minute, OutputMax: 1 << 10, Limit: s.Limit,
			Confine: func(folder string) error {
				argv[2] = strconv.Itoa(syscall.Gettid())
				return s.Confine(folder)
			}})
		if err != nil || string(res.Stdout.Head) != "end\n" {
			t.Errorf("%s network: it could %s%s%v", p.Network, res.Stdout.Head, res.Stderr.Head, err)
		}
	}
}

// The tests that say something about a gateway that is not root, as nobody.
func TestAsNobody(t *testing.T) {
	asRoot(t)
	again(t, &syscall.Credential{Uid: nobody.UID, Gid: nobody.GID}, "TestMissing", "TestThreadIsOutOfReach",
		"TestManyRuns", "TestFewDescriptors", "TestNoTerminal", "TestGatewaysEnvironmentIsClosed")
}

// Many runs at once, a tenth of them stopped at their deadlines: none dies of another's
// end, none sees a descriptor that is not its own, and nothing of them stays with the
// gateway.
func TestManyRuns(t *testing.T) {
	runs := 500
	if testing.Short() || raceEnabled {
		runs = 100
	}
	secret, err := os.Open("/etc") // as a folder that the gateway has open
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	if _, err := unix.FcntlInt(secret.Fd(), unix.F_SETFD, 0); err != nil { // and a library carelessly so
		t.Fatal(err)
	}
	s, err := sandbox.New(shell())
	if err != nil {
		t.Fatal(err)
	}
	spec := proc.Spec{Env: []string{"PATH=/usr/bin:/bin"}, Scratch: t.TempDir(), OutputMax: 1 << 10, Confine: s.Confine, Limit: s.Limit}
	one := func(i int) {
		spec := spec
		spec.Argv, spec.Timeout = []string{"/bin/sh", "-c", fmt.Sprintf("echo %d; exec ls -l /proc/self/fd", i)}, time.Minute
		if i%10 == 0 {
			spec.Argv, spec.Timeout = []string{"/bin/sh", "-c", "setsid sleep 1050 & sleep 1050"}, 20*time.Millisecond
		}
		res, err := proc.Run(t.Context(), spec)
		switch out := string(res.Stdout.Head); {
		case err != nil || res.Unknown || res.Survivors != 0 || res.Folder != nil:
			t.Errorf("run %d: %+v, %v", i, res, err)
		case i%10 == 0:
			if res.Stopped != proc.Deadline {
				t.Errorf("run %d: %+v, want it stopped", i, res)
			}
		case res.Exit != 0 || res.Signal != 0 || !strings.HasPrefix(out, fmt.Sprintf("%d\n", i)):
			t.Errorf("run %d: exit %d, %v: %s%s", i, res.Exit, res.Signal, out, res.Stderr.Head)
		case strings.Count(out, " -> ") != 4 || strings.Count(out, "pipe:") != 2 || !strings.Contains(out, " 0 -> /dev/null\n") || !strings.Contains(out, " 3 -> /proc/"):
			t.Errorf("run %d has other descriptors than its own and that of the folder it lists:\n%s", i, out)
		}
	}
	one(0) // what is opened once
	one(1)
	before := held(t)
	var wg sync.WaitGroup
	next := make(chan int)
	for range 64 {
		wg.Go(func() {
			for i := range next {
				one(i)
			}
		})
	}
	for i := range runs {
		next <- i
	}
	close(next)
	wg.Wait()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		after := held(t)
		if after.fds <= before.fds && after.goroutines <= before.goroutines && after.children == 0 {
			break
		}
		if time.Since(start) > 10*time.Second {
			t.Fatalf("after %d runs the gateway holds %+v, before %+v", runs, after, before)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(spec.Scratch, "*")); len(left)+len(running("1050")) != 0 {
		t.Errorf("left: %v, %v", left, running("1050"))
	}
}

// holds is what a gateway holds.
type holds struct{ fds, goroutines, children int }

func held(t *testing.T) (h holds) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		b, _ := os.ReadFile(list) // of a thread that has ended, nothing
		h.children += len(strings.Fields(string(b)))
	}
	h.fds, h.goroutines = len(fds), runtime.NumGoroutine()
	return h
}

// A gateway without descriptors starts nothing that it cannot watch, mixes up nobody's
// output, says so at once, and goes on when there are some again.
func TestFewDescriptors(t *testing.T) {
	s, err := sandbox.New(shell())
	if err != nil {
		t.Fatal(err)
	}
	one := func(i int) (proc.Result, error) {
		return proc.Run(t.Context(), proc.Spec{Argv: []string{"/bin/sh", "-c", fmt.Sprintf("echo %d; echo %d >&2; sleep 0.3", i, i)}, Env: []string{"PATH=/usr/bin:/bin"}, Scratch: t.TempDir(),
			Timeout: time.Minute, OutputMax: 100, Confine: s.Confine, Limit: s.Limit})
	}
	if res, err := one(1); err != nil || res.Exit != 0 {
		t.Fatal(res, err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var refused, ran atomic.Int64
	for i := range 200 {
		wg.Go(func() {
			res, err := one(i)
			var start *proc.StartError
			want := fmt.Sprintf("%d\n", i)
			switch {
			case errors.As(err, &start) && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)):
				refused.Add(1)
			case err != nil:
				t.Errorf("run %d: %v, want a StartError for want of descriptors", i, err)
			case res.Exit != 0 || string(res.Stdout.Head) != want || string(res.Stderr.Head) != want || res.Folder != nil:
				t.Errorf("run %d: %+v %s %s", i, res, res.Stdout.Head, res.Stderr.Head)
			default:
				ran.Add(1)
			}
		})
	}
	wg.Wait()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if refused.Load() == 0 || ran.Load() == 0 {
		t.Errorf("%d were refused and %d ran: want some of both", refused.Load(), ran.Load())
	}
	if res, err := one(1); err != nil || res.Exit != 0 {
		t.Errorf("afterwards: %+v, %v", res, err)
	}
}

// A process has a session of its own and no terminal, and cannot type into one.
func TestNoTerminal(t *testing.T) {
	res := run(t, shell(), "exec 2>&1; ps -o tty=,sid=,pid= -p $$; echo x >/dev/tty; cat /dev/tty; tty")
	out := string(res.Stdout.Head)
	if f := strings.Fields(out); len(f) < 3 || f[0] != "?" || f[1] != f[2] || !strings.Contains(out, "/dev/tty") || !strings.Contains(out, "not a tty") {
		t.Errorf("got %s", out)
	}
}

// Nobody that the gateway starts reads its environment and command line, whoever it runs
// as, by its number or by its thread's.
func TestGatewaysEnvironmentIsClosed(t *testing.T) {
	t.Setenv("BOX_TOKEN", "must-not-be-seen")
	users := []*sandbox.User{nil}
	if os.Geteuid() == 0 {
		users = append(users, &sandbox.User{Name: "root"}, &nobody)
	}
	for _, user := range users {
		p := shell()
		p.User = user
		res := run(t, p, "env; cat /proc/$PPID/environ; for f in /proc/$PPID/task/*/environ; do cat $f; done; cat /proc/$PPID/maps; true")
		if out := string(res.Stdout.Head); !strings.Contains(out, "PATH=") || strings.Contains(out, "must-not-be-seen") || strings.Contains(out, "[heap]") {
			t.Errorf("%+v: got %s", user, out)
		}
		if !strings.Contains(string(res.Stderr.Head), "environ: Permission denied") {
			t.Errorf("%+v: got %s", user, res.Stderr.Head)
		}
	}
}

// Supplementary groups of the gateway are not those of its processes.
func TestInGroups(t *testing.T) {
	asRoot(t)
	if groups, err := os.Getgroups(); err == nil && slices.Contains(groups, 27) {
		t.Skip("this is it")
	}
	again(t, &syscall.Credential{Groups: []uint32{0, 4, 27}}, "TestRunAs", "TestRootAsRoot")
}

// A root gateway's process that runs as root is root without its powers and groups, and
// regains none from a file that has them.
func TestRootAsRoot(t *testing.T) {
	asRoot(t)
	cat := filepath.Join(t.TempDir(), "cat")
	b, err := os.ReadFile("/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	// VFS_CAP_REVISION_2, all capabilities permitted (linux/capability.h).
	all := []byte{0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0}
	if err := errors.Join(os.WriteFile(cat, b, 0o755), syscall.Setxattr(cat, "security.capability", all, 0)); err != nil {
		t.Fatal(err)
	}
	for _, user := range []*sandbox.User{nil, {Name: "root"}, &nobody} {
		p := shell()
		p.User = user
		p.Exec = append(p.Exec, "/tmp")
		if user != nil && user.UID != 0 { // whom t.TempDir does not let pass
			for dir := filepath.Dir(cat); dir != "/tmp"; dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		res := run(t, p, "id -u; id -G; grep Cap /proc/self/status;"+cat+" /proc/self/status | grep Cap")
		out := string(res.Stdout.Head)
		id := "0"
		if user == &nobody {
			id = "65534"
		}
		if !strings.HasPrefix(out, id+"\n"+id+"\n") {
			t.Errorf("%+v: got %s", user, out)
		}
		for _, set := range []string{"Inh", "Prm", "Eff", "Amb"} {
			if strings.Count(out, "Cap"+set+":\t0000000000000000\n") != 2 {
				t.Errorf("%+v: it has or regains capabilities:\n%s%s", user, out, res.Stderr.Head)
			}
		}
	}
}

// again runs tests of this program by another user.
func again(t *testing.T, as *syscall.Credential, tests ...string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sandbox-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.v", "-test.short", "-test.run", "^("+strings.Join(tests, "|")+")$")
	cmd.Dir, cmd.Env = dir, []string{"TMPDIR=/tmp", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range tests {
		if !strings.Contains(string(out), "--- PASS: "+name) {
			t.Errorf("%s did not pass as %+v:\n%s", name, as, out)
		}
	}
}
