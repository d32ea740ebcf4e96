package command

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"inband/exec/sandbox"
	"inband/ops"
)

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// received is the receipt of an outcome.
func received(t *testing.T, out ops.Outcome) (r Receipt) {
	t.Helper()
	if err := json.Unmarshal(out.Receipt, &r); err != nil {
		t.Fatalf("receipt %s: %v", out.Receipt, err)
	}
	return r
}

func TestReceipt(t *testing.T) {
	o := op(t, "argv", param("e"))
	o.Params = everyType[:1]
	out := execute(t, o, `{"e":"red"}`)
	success(t, out)
	r := received(t, out)
	registry, err := ops.New(ops.Bound{Op: o, Executor: ops.ExecutorFunc(nil)})
	if err != nil {
		t.Fatal(err)
	}
	entry, _ := registry.Lookup(o.Name)
	exe, err := os.ReadFile(o.Command.Argv[0].Word)
	if err != nil {
		t.Fatal(err)
	}
	if r.Op != o.Name || r.Definition != entry.Digest || !reflect.DeepEqual(r.Argv, []string{o.Command.Argv[0].Word, "helper", "argv", "red"}) ||
		r.Program.Path != r.Argv[0] || r.Program.SHA256 != sha(string(exe)) || r.Layers == nil || r.Layers.Landlock < 6 || r.Unconfined {
		t.Errorf("what ran: %s", out.Receipt)
	}
	begun, err := time.Parse(time.RFC3339, r.StartedAt)
	if err != nil || time.Since(begun) > time.Minute {
		t.Errorf("began at %s", r.StartedAt)
	}
	if !r.Started || r.ExitCode == nil || *r.ExitCode != 0 || r.EndedAt < r.StartedAt || r.Stdout.Bytes != int64(len("[\"red\"]\n")) || r.Stdout.SHA256 != sha("[\"red\"]\n") || r.Stderr.SHA256 != sha("") || r.Fault != "" ||
		r.Blotted != 0 || len(r.Checks) != 1 || !r.Checks[0].Held {
		t.Errorf("how it ended: %s", out.Receipt)
	}

	f := received(t, execute(t, op(t, "fail"), `{}`))
	if f.Fault != ops.OpFailed || f.ExitCode == nil || *f.ExitCode != 3 || f.Checks[0].Held {
		t.Errorf("fail: %+v", f)
	}
	if k := received(t, execute(t, op(t, "killed"), `{}`)); k.ExitCode != nil || k.Signal != "killed" || k.Checks != nil {
		t.Errorf("killed: %+v", k)
	}
	slow := op(t, "stay")
	slow.Timeout = 50 * time.Millisecond
	if d := received(t, execute(t, slow, `{}`)); d.Stopped != "deadline" || d.Fault != ops.TimedOut || !d.Started {
		t.Errorf("deadline: %+v", d)
	}
	// Nothing ran, and it says of what.
	missing := pathOp(t, t.TempDir())
	if m := received(t, execute(t, missing, `{"path":"x"}`)); m.Started || m.Fault != ops.NotFound || m.Layers != nil || m.StartedAt != "" || m.Program.SHA256 == "" {
		t.Errorf("not started: %+v", m)
	}
	if out := execute(t, missing, `{}`); out.Receipt != nil {
		t.Errorf("bad parameters: %s", out.Receipt)
	}
}

func TestChecks(t *testing.T) {
	run := func(program string, checks ...ops.Check) ops.Outcome {
		o := op(t, "")
		o.Command.Argv, o.Command.Checks = []ops.Arg{word("/bin/sh"), word("-c"), word(program)}, checks
		return execute(t, o, `{}`)
	}
	exit := func(codes ...int) ops.Check { return ops.Check{Exit: codes} }
	if got := success(t, run("exit 1", exit(0, 1))); got.ExitCode != 1 {
		t.Errorf("got %+v", got)
	}
	success(t, run("echo done: 3", exit(0), ops.Check{Stdout: `(?m)^done: \d$`}))
	success(t, run("echo done: 3", ops.Check{Stdout: `done`}))
	for _, c := range []struct {
		program string
		checks  []ops.Check
		detail  string
	}{
		{"exit 2", nil, `{"exit":[0]}`},
		{"exit 2", []ops.Check{exit(0, 1)}, `{"exit":[0,1]}`},
		{"exit 0", []ops.Check{exit(1)}, `{"exit":[1]}`},
		{"echo no", []ops.Check{exit(0), {Stdout: "done"}}, `{"stdout":"done"}`},
		{"echo done; exit 1", []ops.Check{{Stdout: "done"}}, `{"exit":[0]}`},
		{"echo done >&2", []ops.Check{{Stdout: "done"}}, `{"stdout":"done"}`},
	} {
		f := failure(t, run(c.program, c.checks...), ops.Failed, ops.OpFailed)
		if detail, _ := json.Marshal(f.Details["check"]); string(detail) != c.detail || f.Details["started"] != true {
			t.Errorf("%s with %v: got %v %v", c.program, c.checks, f, f.Details)
		}
	}
	f := failure(t, run("kill -9 $$", exit(0, 137)), ops.Failed, ops.OpFailed)
	if f.Details["signal"] != "killed" || f.Details["check"] != nil {
		t.Errorf("got %v %v", f, f.Details)
	}
	o := op(t, "argv")
	o.Command.Checks = []ops.Check{{Stdout: "("}}
	if _, err := New(o, testConfig); err == nil {
		t.Error("a check that is no expression was bound")
	}
}

// Who the op runs as (x46). A root gateway has nobody do it unless the op names somebody,
// and root only where its configuration allows that.
func TestRunAs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a gateway that is not root has one user")
	}
	id := func(runAs string, config Config) (ops.Outcome, error) {
		o := op(t, "")
		o.Command.Argv, o.Command.RunAs = []ops.Arg{word("/usr/bin/id")}, runAs
		o.Command.FS.Read = []string{"/etc"}
		e, err := prepare(o, config)
		if err != nil {
			t.Fatal(err)
		}
		return e.Execute(t.Context(), ops.Call{Params: json.RawMessage(`{}`)})
	}
	for runAs, want := range map[string]string{"": "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)\n", "nobody": "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)\n",
		"root": "uid=0(root) gid=0(root) groups=0(root)\n"} {
		out, err := id(runAs, testConfig)
		if err != nil {
			t.Fatal(err)
		}
		if got := success(t, out); got.Stdout != want {
			t.Errorf("run_as %q: got %q", runAs, got.Stdout)
		}
		if r := received(t, out); !r.Layers.RunAs.GroupsCleared || (r.Layers.RunAs.UID == 0) != (runAs == "root") {
			t.Errorf("run_as %q: got %+v", runAs, r.Layers.RunAs)
		}
	}
	// Nor does a folder for temporary files that nobody may pass stand in the way.
	t.Setenv("TMPDIR", t.TempDir())
	out, err := id("", testConfig)
	if err != nil {
		t.Fatal(err)
	}
	success(t, out)
	for runAs, config := range map[string]Config{"root": {}, "no-such-user": testConfig} {
		out, err := id(runAs, config)
		if err != nil {
			t.Fatal(err)
		}
		if f := failure(t, out, ops.Failed, ops.NoSandbox); !reflect.DeepEqual(f.Details["missing"], []string{sandbox.LayerRunAs}) || f.Details["started"] != false ||
			!strings.Contains(f.Message, "run_as") {
			t.Errorf("run_as %q: got %v %v", runAs, f, f.Details)
		}
	}
}

// What the op's user may not read is not handed over to it either.
func TestPathOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a gateway that is not root has one user")
	}
	root, err := os.MkdirTemp("/tmp", "inband-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	for name, mode := range map[string]os.FileMode{"open": 0o644, "closed": 0o600, "nothing": 0} {
		if err := os.WriteFile(root+"/"+name, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	o := pathOp(t, root)
	o.Command.RunAs = ""
	if got := success(t, execute(t, o, `{"path":"open"}`)); got.Stdout != "open" {
		t.Errorf("got %q", got.Stdout)
	}
	for _, name := range []string{"closed", "nothing"} {
		if f := failure(t, execute(t, o, `{"path":"`+name+`"}`), ops.Failed, ops.NotFound); !strings.Contains(f.Message, "permission denied") {
			t.Errorf("%s: got %v", name, f)
		}
	}
}

// Without a sandbox runs only what its file and the configuration both say.
func TestUnconfined(t *testing.T) {
	file := t.TempDir() + "/made"
	o := op(t, "")
	o.SideEffecting = true
	o.Command.Argv, o.Command.Unconfined = []ops.Arg{word("/bin/sh"), word("-c"), word("echo x > " + file)}, true
	o.Command.Limits.NoFile = 50
	e, err := prepare(o, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Execute(t.Context(), ops.Call{Params: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if f := failure(t, out, ops.Failed, ops.NoSandbox); !strings.Contains(f.Message, "configuration") || f.Details["started"] != false {
		t.Errorf("got %v %v", f, f.Details)
	}
	if got := Disabled([]ops.Bound{{Op: o, Executor: e}}); len(got) != 1 {
		t.Errorf("disabled: %v", got)
	}
	config := testConfig
	config.AllowUnconfined = []ops.OpName{o.Name}
	if e, err = prepare(o, config); err != nil {
		t.Fatal(err)
	}
	if out, err = e.Execute(t.Context(), ops.Call{Params: json.RawMessage(`{}`)}); err != nil {
		t.Fatal(err)
	}
	success(t, out)
	if b, err := os.ReadFile(file); err != nil || string(b) != "x\n" {
		t.Errorf("got %q, %v", b, err)
	}
	if r := received(t, out); !r.Unconfined || r.Layers.Landlock != 0 || r.Layers.Seccomp != "" || r.Layers.Limits[0].Value != 50 {
		t.Errorf("receipt: %s", out.Receipt)
	}
}

// A layer that the op wants and that cannot be had here disables it and is named.
func TestMissingLayer(t *testing.T) {
	o := op(t, "argv")
	o.Command.Require = []string{sandbox.LayerCgroup}
	e, err := prepare(o, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Execute(t.Context(), ops.Call{Params: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if f := failure(t, out, ops.Failed, ops.NoSandbox); !reflect.DeepEqual(f.Details["missing"], []string{sandbox.LayerCgroup}) || f.Details["started"] != false {
		t.Errorf("got %v %v", f, f.Details)
	}
	if got := Disabled([]ops.Bound{{Op: o, Executor: e}}); len(got) != 1 || !strings.Contains(got[0].Error(), sandbox.LayerCgroup) {
		t.Errorf("disabled: %v", got)
	}
}
