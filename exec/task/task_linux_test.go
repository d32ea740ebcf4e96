package task

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"inband/exec/command"
	"inband/exec/proc"
	"inband/ops"
)

// A command gets what its Spec says and nothing of the worker's.
func TestWhatACommandGets(t *testing.T) {
	t.Setenv("AMBIENT", "secret of the worker")
	onBothWays(t, Config{}, func(t *testing.T, r *Runner) {
		folder := newFolder(t)
		path := func(name string) string { return filepath.Join(folder, name) }
		for _, file := range []string{"task/instruction.json", "mine"} {
			if err := os.WriteFile(path(file), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		spec := helperSpec(folder, "report", path("task/instruction.json"), path("task"), path("work"), path("out"), path("control"), path("home"), path("tmp"),
			path("mine"), folder, path(LogFile), path(RecordFile), "/etc/shadow", "/etc/passwd", "/tmp")
		var started proc.Process
		out, err := r.Run(t.Context(), spec, Report{Started: func(p proc.Process) error {
			started = p
			return nil
		}})
		if err != nil || out.Exit != 0 || out.Checks < 2 || out.Survivors != nil || out.Stopped != NotStopped || out.Log != nil {
			t.Fatalf("got %+v, %v", out, err)
		}
		if started.PID == 0 || started.Lives() {
			t.Errorf("started %v", started)
		}
		var c circumstances
		if err := json.Unmarshal([]byte(out.Tail), &c); err != nil {
			t.Fatalf("%v: %q", err, out.Tail)
		}
		want := append(slices.Clone(spec.Env), "HOME="+path("home"), "TMPDIR="+path("tmp"))
		if !slices.Equal(c.Env, want) || c.Dir != path("work") {
			t.Errorf("environment %q in %s; want %q", c.Env, c.Dir, want)
		}
		if want := []string{"0 /dev/null", "1 pipe:", "2 pipe:"}; r.namespaces && !slices.Equal(c.Fds, want) {
			t.Errorf("descriptors %q; want %q", c.Fds, want)
		}
		if c.Nice != 20-10 {
			t.Errorf("it has the priority %d", c.Nice)
		}
		for file, can := range map[string]string{"task/instruction.json": "r", "task": "r", "work": "rw", "out": "rw", "control": "rw", "home": "rw", "tmp": "rw",
			"mine": "", "": "", LogFile: "", RecordFile: "", "/etc/shadow": "", "/etc/passwd": "r", "/tmp": ""} {
			if !filepath.IsAbs(file) {
				file = filepath.Join(folder, file)
			}
			if c.Files[file] != can {
				t.Errorf("%s: it can %q; want %q", file, c.Files[file], can)
			}
		}
		b, err := os.ReadFile(path(LogFile))
		if err != nil || string(b) != out.Tail {
			t.Errorf("log %q, %v; tail %q", b, err, out.Tail)
		}
	})
}

// How a command ended is told as it was.
func TestHowACommandEnds(t *testing.T) {
	onBothWays(t, Config{}, func(t *testing.T, r *Runner) {
		for script, want := range map[string]Outcome{
			"exit 3":                              {Exit: 3},
			"kill -9 $$":                          {Exit: -1, Signal: "SIGKILL"},
			"echo out; echo err >&2; exit 75":     {Exit: 75, Tail: "out\nerr\n", Output: 8},
			"echo 1 >../out/x; cat ../out/x":      {Tail: "1\n", Output: 2},
			"cp /bin/true mine && ./mine":         {},
			"printf '#!/bin/sh\nexit 4' >s; sh s": {Exit: 4},
		} {
			out, err := r.Run(t.Context(), newSpec(newFolder(t), "sh", "-c", script), Report{})
			if err != nil || out.Checks < 2 {
				t.Fatalf("%s: %+v, %v", script, out, err)
			}
			got := Outcome{Exit: out.Exit, Signal: out.Signal, Stopped: out.Stopped, Tail: out.Tail, Output: out.Output}
			if len(got.Tail) == len(want.Tail) && want.Output == 8 {
				got.Tail = want.Tail // two pipes have no order
			}
			if got.Exit != want.Exit || got.Signal != want.Signal || got.Tail != want.Tail || got.Output != want.Output || got.Stopped != NotStopped {
				t.Errorf("%s: got %+v, want %+v", script, got, want)
			}
		}
	})
}

// What cannot be run has not run, and the error says so.
func TestNothingRan(t *testing.T) {
	r := newRunner(t, Config{})
	no := errors.New("no")
	for name, c := range map[string]struct {
		do     func(*Spec)
		report Report
		want   string
	}{
		"no command":      {func(s *Spec) { s.Argv = nil }, Report{}, "no command"},
		"no such program": {func(s *Spec) { s.Argv = []string{"nothing-like-it"} }, Report{}, "no program nothing-like-it"},
		"no such file":    {func(s *Spec) { s.Argv = []string{"./nothing"} }, Report{}, "no such file"},
		"late":            {func(s *Spec) { s.Deadline = time.Now() }, Report{}, "deadline"},
		"elsewhere":       {func(s *Spec) { s.Work = "/tmp" }, Report{}, "not below"},
		"up":              {func(s *Spec) { s.Write = []string{s.Folder + "/../x"} }, Report{}, "not below"},
		"relative":        {func(s *Spec) { s.Folder = "x" }, Report{}, "absolute"},
		"no folder":       {func(s *Spec) { s.Read = []string{s.Folder + "/none"} }, Report{}, "no folder"},
		"not let begin":   {nil, Report{Started: func(proc.Process) error { return no }}, "no"},
		"no repository":   {func(s *Spec) { s.Revision = strings.Repeat("a", 40) }, Report{}, "no repository"},
		"two secrets":     {func(s *Spec) { s.Secrets = []Secret{{"file:a", []byte("12345678")}, {"env:a", []byte("12345678")}} }, Report{}, "two are called a"},
	} {
		folder := newFolder(t)
		spec := newSpec(folder, "touch", "mark")
		if c.do != nil {
			c.do(&spec)
		}
		_, err := r.Run(t.Context(), spec, c.report)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if _, err := os.Stat(filepath.Join(folder, "work", "mark")); err == nil {
			t.Errorf("%s: it ran", name)
		}
		if _, err := os.Stat(secretsFolder(folder)); err == nil {
			t.Errorf("%s: secrets stay", name)
		}
	}
}

// However a tree was forked, nothing of it is alive when Run has said so: grandchildren in
// sessions of their own, some that ignore SIGTERM, and one that is another process every
// 2 ms (pb-026).
func TestTheTreeIsEnded(t *testing.T) {
	onBothWays(t, Config{}, func(t *testing.T, r *Runner) {
		for _, c := range []struct{ mode, arg string }{{"stubborn", "3"}, {"forker", "0"}, {"forker", "1"}} {
			mode := c.mode + " " + c.arg
			for _, how := range []Stop{Cancelled, Deadline, NotStopped} {
				if (how == NotStopped) != (mode == "forker 1") {
					continue // that one alone ends by itself, at once
				}
				folder := newFolder(t)
				spec := helperSpec(folder, c.mode, c.arg)
				ctx, cancel := context.WithCancel(t.Context())
				ready := func(int64) { // something was written: that all are there
					if how == Cancelled {
						cancel()
					}
				}
				if how == Deadline {
					spec.Deadline = time.Now().Add(500 * time.Millisecond)
				}
				out, err := r.Run(ctx, spec, Report{Progress: ready})
				cancel()
				if err != nil || out.Stopped != how || out.Checks < 2 || len(out.Survivors) > 0 {
					t.Errorf("%s, %q: got %+v, %v", mode, how, out, err)
				}
				if left := living(t, folder); len(left) > 0 {
					t.Errorf("%s, %q: alive: %v", mode, how, left)
				}
				if g, err := r.Gone(t.Context(), folder); err != nil || g.Proof == "" || len(g.Ended) > 0 {
					t.Errorf("%s, %q: asked again: %+v, %v", mode, how, g, err)
				}
			}
		}
	})
}

// A command that writes for ever costs neither memory nor disk beyond its bounds, and one
// that fills its folder is ended.
func TestOutputAndDiskAreBounded(t *testing.T) {
	onBothWays(t, Config{Log: 64 << 10, Disk: 8 << 20}, func(t *testing.T, r *Runner) {
		folder := newFolder(t)
		out, err := r.Run(t.Context(), newSpec(folder, "sh", "-c", "head -c 200000000 /dev/zero; echo end"), Report{})
		if err != nil || out.Exit != 0 || out.Output != 200000004 || !strings.HasSuffix(out.Tail, "end\n") {
			t.Fatalf("got %+v, %v", out, err)
		}
		if info, err := os.Stat(filepath.Join(folder, LogFile)); err != nil || info.Size() > 65<<10 || info.Size() < 64<<10 {
			t.Errorf("the log: %v, %v", info, err)
		}
		// One file has a limit of its own; many are ended by the worker.
		out, err = r.Run(t.Context(), newSpec(newFolder(t), "sh", "-c", "head -c 9000000 /dev/zero >large"), Report{})
		if err != nil || out.Exit == 0 {
			t.Errorf("one large file: %+v, %v", out, err)
		}
		out, err = r.Run(t.Context(), newSpec(newFolder(t), "sh", "-c", "i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero >../out/$i; done"), Report{})
		if err != nil || out.Stopped != Full || out.Checks < 2 {
			t.Errorf("many files: %+v, %v", out, err)
		}
	})
}

// Eight threads that spin do not keep the worker from telling of their progress (pb-025).
func TestProgressBesideSpinningThreads(t *testing.T) {
	onBothWays(t, Config{}, func(t *testing.T, r *Runner) {
		folder := newFolder(t)
		spec := helperSpec(folder, "spin", filepath.Join(folder, "control", "progress"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var told []int64
		out, err := r.Run(ctx, spec, Report{Progress: func(n int64) {
			if told = append(told, n); len(told) == 30 {
				cancel()
			}
		}})
		if err != nil || out.Stopped != Cancelled || out.Checks < 2 {
			t.Fatalf("got %+v, %v", out, err)
		}
		if len(told) < 30 || !slices.IsSorted(told) {
			t.Errorf("progress %v", told)
		}
	})
}

// What a progress file is replaced by does not hold the worker up, or lead it elsewhere.
func TestProgressFileIsTheCommands(t *testing.T) {
	r := newRunner(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	folder := newFolder(t)
	script := `cd ../control; ln -s /etc/passwd progress; sleep 0.1; rm progress; mkfifo progress; sleep 0.1; rm progress; mkdir progress; sleep 0.1; echo said; sleep 1000`
	out, err := r.Run(ctx, newSpec(folder, "sh", "-c", script), Report{Progress: func(n int64) {
		if n != 5 {
			t.Errorf("progress %d, want that of the output alone", n)
		}
		cancel()
	}})
	if err != nil || out.Stopped != Cancelled {
		t.Errorf("got %+v, %v", out, err)
	}
}

// Secrets are files in memory, stand in no log, and go with the run.
func TestSecrets(t *testing.T) {
	if err := memoryOnly(inMemory); err != nil {
		t.Skip(err)
	}
	onBothWays(t, Config{}, func(t *testing.T, r *Runner) {
		folder := newFolder(t)
		spec := newSpec(folder, "sh", "-c", `cd "$CREDENTIALS_DIRECTORY" && ls && cat token; base64 token; pwd >&2; env | grep -c SECRET; ls -ld . | cut -c 1-10`)
		spec.Secrets = []Secret{{"file:token", []byte("the-very-secret-token")}, {"env:other", []byte("another secret")}}
		out, err := r.Run(t.Context(), spec, Report{})
		if err != nil || out.Exit != 0 {
			t.Fatalf("got %+v, %v", out, err)
		}
		log, err := os.ReadFile(filepath.Join(folder, LogFile))
		for _, text := range []string{out.Tail, string(log)} {
			if strings.Contains(text, "very-secret") || strings.Count(text, "[secret file:token]") != 2 || !strings.Contains(text, "other\ntoken\n") ||
				!strings.Contains(text, secretsFolder(folder)) || !strings.Contains(text, "drwx------") {
				t.Errorf("got %q, %v", text, err)
			}
		}
		if _, err := os.Stat(secretsFolder(folder)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("they stay: %v", err)
		}
	})
	if s := (Secret{"file:a", []byte("value")}); s.String() != "[secret file:a]" || s.GoString() != "[secret file:a]" {
		t.Error("a secret tells itself")
	}
}

// A source is unpacked before the command begins, once; one that is not what it should be
// keeps it from beginning.
func TestSource(t *testing.T) {
	b := archive(t, entry{name: "a", content: "one\n"}, entry{name: "run", content: "#!/bin/sh\ncat a; echo more >>a\n", mode: 0o700})
	_, digest, err := unpack(t, b, small)
	if err != nil {
		t.Fatal(err)
	}
	onBothWays(t, Config{}, func(t *testing.T, r *Runner) {
		folder := newFolder(t)
		file := filepath.Join(folder, "source.tar")
		if err := os.WriteFile(file, zipped(t, b), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "work", "left"), nil, 0o600); err != nil {
			t.Fatal(err) // by a crash in the middle of unpacking
		}
		spec := newSpec(folder, "./run")
		spec.Archive = func() (*os.File, error) { return os.Open(file) }
		spec.Digest = "h1:" + strings.Repeat("A", 43) + "="
		_, err := r.Run(t.Context(), spec, Report{})
		var refused *SourceError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), digest) {
			t.Errorf("another digest: got %v", err)
		}
		spec.Digest = digest
		for _, want := range []string{"one\n", "one\nmore\n"} { // the second goes on where the first has left it
			out, err := r.Run(t.Context(), spec, Report{})
			if err != nil || out.Tail != want || out.Worktree != digest {
				t.Errorf("got %+v, %v; want %q of %s", out, err, want, digest)
			}
		}
		if _, err := os.Stat(filepath.Join(folder, "work", "left")); err == nil {
			t.Error("what stood in the working folder stays")
		}
	})
}

// A revision of a repository is exported, by its full id only.
func TestRevision(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git here")
	}
	repository := t.TempDir()
	run := func(args ...string) string {
		c := exec.Command(git, append([]string{"-C", repository, "-c", "user.name=n", "-c", "user.email=e@example.org"}, args...)...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("init", "-q")
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // more than a pipe holds
	for name, b := range map[string][]byte{"a": []byte("one\n"), "large": large} {
		if err := os.WriteFile(filepath.Join(repository, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("add", ".")
	run("commit", "-q", "-m", "m")
	id := run("rev-parse", "HEAD")
	r := newRunner(t, Config{Repository: repository})
	folder := newFolder(t)
	spec := newSpec(folder, "sh", "-c", "cat a; wc -c <large")
	spec.Revision = id
	out, err := r.Run(t.Context(), spec, Report{})
	_, want, wrong := unpack(t, archive(t, entry{name: "a", content: "one\n"}, entry{name: "large", content: string(large)}), DefaultBounds)
	if err != nil || wrong != nil || out.Tail != "one\n1048576\n" || out.Worktree != want {
		t.Errorf("got %+v, %v; want the digest %s, %v", out, err, want, wrong)
	}
	for _, revision := range []string{"HEAD", "main", id[:39], id + "^", strings.Repeat("a", 40), "--output=x", "sha256:" + strings.Repeat("a", 64)} {
		spec := newSpec(newFolder(t), "true")
		spec.Revision = revision
		_, err := r.Run(t.Context(), spec, Report{})
		var refused *SourceError
		if !errors.As(err, &refused) {
			t.Errorf("%s: got %v, want a SourceError", revision, err)
		}
	}
	// One that is too large is not exported to its end.
	bound := newRunner(t, Config{Repository: repository, Source: Bounds{Entries: 10, Bytes: 1 << 16, Depth: 3}})
	spec = newSpec(newFolder(t), "true")
	spec.Revision = id
	var refused *SourceError
	if _, err := bound.Run(t.Context(), spec, Report{}); !errors.As(err, &refused) || !strings.Contains(err.Error(), "65536 bytes") {
		t.Errorf("too large: got %v", err)
	}
}

// A worker that is killed leaves what it ran to the next one, which ends it and says how
// it knows that nothing is left.
func TestGoneAfterTheWorkerIsKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"inside", "outside"} {
		for mode, arg := range map[string]string{"stubborn": "3", "forker": "0"} {
			t.Run(how+" "+mode, func(t *testing.T) {
				r := newRunner(t, Config{})
				if how == "inside" && !r.namespaces {
					t.Skip("no namespaces here")
				}
				folder := newFolder(t)
				worker := exec.Command(self, folder, how, mode, arg)
				worker.Env = append(os.Environ(), "TASK_HELPER=worker")
				stdout, err := worker.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := worker.Start(); err != nil {
					t.Fatal(err)
				}
				until(t, bufio.NewScanner(stdout), "under way")
				_ = worker.Process.Signal(syscall.SIGKILL)
				_ = worker.Wait()
				if err := os.Mkdir(secretsFolder(folder), 0o700); err != nil {
					t.Fatal(err)
				}
				g, err := r.Gone(t.Context(), folder)
				switch {
				case err == nil && (g.Proof == "" || len(g.Alive) > 0):
					t.Errorf("got %+v without an error", g)
				case how == "inside" && (err != nil || g.Proof != "its namespaces are gone" && g.Proof != "the command never began"):
					t.Errorf("got %+v, %v", g, err)
				case err != nil && !strings.Contains(err.Error(), "cannot be told"):
					t.Errorf("got %v", err)
				}
				if left := living(t, folder); len(left) > 0 {
					t.Errorf("alive: %v, after %+v, %v", left, g, err)
				}
				if _, stays := os.Stat(secretsFolder(folder)); err == nil && stays == nil {
					t.Error("its secrets stay")
				}
				_ = os.RemoveAll(secretsFolder(folder))
			})
		}
	}
}

// Where there are no namespaces the cgroup proves it.
func TestGoneByTheCgroup(t *testing.T) {
	newRunner(t, Config{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := newFolder(t)
	environment := append(os.Environ(), "TASK_ENCLOSE=tasktest"+strconv.Itoa(os.Getpid()))
	worker := exec.Command(self, folder, "outside", "stubborn", "3")
	worker.Env = append(slices.Clone(environment), "TASK_HELPER=worker")
	stdout, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	none := !lines.Scan() || lines.Text() == "no cgroup"
	_ = worker.Process.Signal(syscall.SIGKILL)
	_ = worker.Wait()
	next := exec.Command(self, folder)
	next.Env = append(slices.Clone(environment), "TASK_HELPER=gone")
	said, err := next.CombinedOutput()
	if none {
		t.Skip("no cgroups here")
	}
	if err != nil || string(said) != "all that was in the worker's cgroup has been ended <nil>\n" {
		t.Errorf("got %q, %v", said, err)
	}
	if left := living(t, folder); len(left) > 0 {
		t.Errorf("alive: %v", left)
	}
}

// What cannot be known is not said.
func TestGoneSaysWhatItKnows(t *testing.T) {
	r := newRunner(t, Config{})
	self, err := proc.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	gone := proc.Process{PID: 1 << 29, Start: self.Start}
	for name, c := range map[string]struct {
		rec   *record
		proof string // "" for an error
	}{
		"no record":     {nil, "the command never began"},
		"never began":   {&record{Unpacked: true}, "the command never began"},
		"another boot":  {&record{Process: proc.Process{PID: 1, Start: "1@other"}, PIDs: pids}, "the machine has been started since"},
		"another place": {&record{Process: gone, PIDs: "pid:[1]", Namespaces: true}, ""},
		"over":          {&record{Process: gone, PIDs: pids, Over: true}, "its tree was ended, and looked for twice"},
		"namespaces":    {&record{Process: gone, PIDs: pids, Namespaces: true}, "its namespaces are gone"},
	} {
		folder := newFolder(t)
		root, err := os.OpenRoot(folder)
		if err != nil {
			t.Fatal(err)
		}
		if c.rec != nil {
			if err := c.rec.write(root); err != nil {
				t.Fatal(err)
			}
		}
		root.Close()
		g, err := r.Gone(t.Context(), folder)
		if (err != nil) != (c.proof == "") || g.Proof != c.proof {
			t.Errorf("%s: got %+v, %v; want %q", name, g, err, c.proof)
		}
	}
	if _, err := r.Gone(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no folder: no error")
	}
	folder := newFolder(t)
	if err := os.WriteFile(filepath.Join(folder, RecordFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Gone(t.Context(), folder); err == nil {
		t.Error("a torn record: no error")
	}
}

// Whoever may be of a run is judged by what it cannot lose.
func TestJudge(t *testing.T) {
	at := func(pid int, start string) proc.Process { return proc.Process{PID: pid, Start: start + "@b"} }
	self := at(10, "1")
	rec := &record{Process: at(100, "50"), UID: 7, Filtered: true, Worker: at(9, "1")}
	like := func(pid int, start string) seen {
		return seen{Process: at(pid, start), uid: 7, bound: true, filtered: true, parent: 1}
	}
	with := func(s seen, do func(*seen)) seen { do(&s); return s }
	for name, c := range map[string]struct {
		s    seen
		want string
	}{
		"the process itself":   {seen{Process: rec.Process, parent: 1}, "found"},
		"its pid come again":   {seen{Process: at(100, "99"), parent: 1}, ""},
		"with its marks":       {with(like(200, "60"), func(s *seen) { s.marked = true }), "found"},
		"below one with marks": {with(like(201, "61"), func(s *seen) { s.parent = 200 }), "found"},
		"without marks":        {like(202, "60"), "suspect"},
		"as old":               {like(202, "50"), "suspect"},
		"older":                {like(203, "49"), ""},
		"of another user":      {with(like(204, "60"), func(s *seen) { s.uid = 8; s.marked = true }), ""},
		"free":                 {with(like(205, "60"), func(s *seen) { s.bound = false; s.marked = true }), ""}, // somebody who looks at the folder
		"without a filter":     {with(like(206, "60"), func(s *seen) { s.filtered = false; s.marked = true }), ""},
		"of another run":       {with(like(207, "60"), func(s *seen) { s.other = "/other" }), ""},
		"this process":         {with(like(10, "1"), func(s *seen) { s.marked = true }), ""},
		"started by this one":  {with(like(208, "60"), func(s *seen) { s.parent = 10 }), ""},
	} {
		all := []seen{{Process: self, parent: 1, uid: 7}, {Process: at(1, "0")}}
		if c.s.parent == 200 {
			all = append(all, with(like(200, "60"), func(s *seen) { s.marked = true }))
		}
		if c.s.Process == self {
			all = all[1:]
		}
		found, suspects := judge(append(all, c.s), rec, self)
		is := func(list []seen) bool {
			return slices.ContainsFunc(list, func(s seen) bool { return s.Process == c.s.Process })
		}
		got := map[[2]bool]string{{true, false}: "found", {false, true}: "suspect"}[[2]bool{is(found), is(suspects)}]
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	// Without a sandbox root may become anybody.
	free := &record{Process: rec.Process, Worker: rec.Worker}
	bare := func(s *seen) { s.uid, s.filtered = 8, false }
	if _, suspects := judge([]seen{with(like(204, "60"), bare), with(like(205, "60"), func(s *seen) { s.bound = false })}, free, self); len(suspects) != 1 || suspects[0].PID != 204 {
		t.Errorf("without a sandbox: got %v", suspects)
	}
	// What this process has started may be the run's if that is this process's own.
	rec.Worker = self
	if _, suspects := judge([]seen{{Process: self, parent: 1}, with(like(208, "60"), func(s *seen) { s.parent = 10 })}, rec, self); len(suspects) != 1 {
		t.Errorf("got %v", suspects)
	}
}

// A command that is another user's has what it needs, and the worker has what it leaves.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes processes another user's")
	}
	nobody, err := command.LookupUser("nobody")
	if err != nil {
		t.Fatal(err)
	}
	onBothWays(t, Config{User: nobody}, func(t *testing.T, r *Runner) {
		folder, err := os.MkdirTemp("/tmp", "inband-task-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(folder) })
		makeFolders(t, folder)
		if err := os.WriteFile(filepath.Join(folder, "task", "instruction.json"), []byte("read me\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		spec := newSpec(folder, "sh", "-c", `id -u; cat ../task/instruction.json a "$CREDENTIALS_DIRECTORY"/token >/dev/null && echo x >../out/x && cat $CREDENTIALS_DIRECTORY/../../etc/shadow; ls ..`)
		spec.Archive = func() (*os.File, error) {
			file := filepath.Join(folder, "source.tar")
			if err := os.WriteFile(file, archive(t, entry{name: "a"}), 0o600); err != nil {
				return nil, err
			}
			return os.Open(file)
		}
		spec.Secrets = []Secret{{ops.CredentialRef("file:token"), []byte("12345678")}}
		out, err := r.Run(t.Context(), spec, Report{})
		if err != nil || !strings.HasPrefix(out.Tail, "65534\n") || strings.Contains(out.Tail, "instruction") || strings.Contains(out.Tail, "token") {
			t.Fatalf("got %+v, %v", out, err)
		}
		if b, err := os.ReadFile(filepath.Join(folder, "out", "x")); err != nil || string(b) != "x\n" {
			t.Errorf("got %q, %v: %s", b, err, out.Tail)
		}
		// Where the user cannot get to, nothing runs.
		closed := filepath.Join(folder, "closed")
		if err := os.MkdirAll(filepath.Join(closed, "run"), 0o700); err != nil {
			t.Fatal(err)
		}
		makeFolders(t, filepath.Join(closed, "run"))
		if _, err := r.Run(t.Context(), newSpec(filepath.Join(closed, "run"), "true"), Report{}); err == nil || !strings.Contains(err.Error(), "cannot get to") {
			t.Errorf("got %v", err)
		}
	})
}

// Without a sandbox a command may do what the worker may, and is bounded and ended all the
// same.
func TestUnconfined(t *testing.T) {
	r := newRunner(t, Config{Unconfined: true})
	outside := filepath.Join(t.TempDir(), "outside")
	out, err := r.Run(t.Context(), newSpec(newFolder(t), "sh", "-c", "echo x >"+outside+"; setsid sleep 1000 & exit 5"), Report{})
	if err != nil || out.Exit != 5 || out.Checks < 2 {
		t.Fatalf("got %+v, %v", out, err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	if len(r.Missing()) != 1 || r.Layers().Landlock != 0 {
		t.Errorf("missing %q, layers %+v", r.Missing(), r.Layers())
	}
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]Config{
		"a path that is not there": {Read: []string{"/nothing/like/it"}}, "a small log": {Log: 10}, "a negative bound": {CPU: -1},
		"a relative repository": {Repository: "x"}, "no repository": {Repository: "/nothing/like/it"}, "another network": {Network: "some"},
	} {
		if _, err := New(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A /proc that hides processes proves nothing.
func TestHiddenProcesses(t *testing.T) {
	for options, want := range map[string]bool{"rw": false, "rw,gid=7,hidepid=2": true, "rw,hidepid=invisible": true, "rw,hidepid=0": false, "rw,hidepid=off": false} {
		mounts := "22 1 0:21 / /proc rw,nosuid - proc proc " + options + "\n23 1 0:22 / /other rw - proc proc rw,hidepid=2\n"
		if err := hidden(mounts); (err != nil) != want {
			t.Errorf("%s: got %v", options, err)
		}
	}
}
