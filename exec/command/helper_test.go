package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inband/exec/proc"
	"inband/exec/sandbox"
	"inband/ops"
)

// outAndIn runs f with a function that leaves an op as it is, and with one that has it
// require namespaces: whatever f asks holds for both.
func outAndIn(t *testing.T, f func(t *testing.T, put func(ops.Op) ops.Op)) {
	t.Run("outside", func(t *testing.T) { f(t, func(o ops.Op) ops.Op { return o }) })
	t.Run("inside", func(t *testing.T) {
		needNamespaces(t)
		f(t, inNamespaces)
	})
}

func inNamespaces(o ops.Op) ops.Op {
	c := *o.Command
	c.Require = append(slices.Clone(c.Require), sandbox.LayerNamespaces)
	o.Command = &c
	return o
}

func needNamespaces(t testing.TB) {
	t.Helper()
	if _, err := proc.Namespaces(true); err != nil {
		t.Skipf("no namespaces here: %v", err)
	}
}

// shell is an op that runs a script with the programs of the system.
func shell(t testing.TB, script string) ops.Op {
	o := op(t, "argv")
	o.Command.Argv = []ops.Arg{word("/bin/sh"), word("-c"), word(script)}
	o.Command.FS = ops.Paths{Read: []string{"/proc", "/etc"}, Exec: []string{"/usr/bin", "/bin"}}
	o.Command.Env = []ops.EnvVar{{Name: "PATH", Value: "/usr/bin:/bin"}}
	return o
}

// What an op gets, what it is kept to, and how its end is told are the same in namespaces.
func TestNamespacesChangeNothingElse(t *testing.T) {
	size := int64(4096)
	outAndIn(t, func(t *testing.T, put func(ops.Op) ops.Op) {
		for _, c := range []struct {
			name string
			op   ops.Op
			do   func(*ops.Op)
			want string
		}{
			{"words", op(t, "argv", word("a b"), word("")), nil, `succeeded: ["a b",""]`},
			{"environment", op(t, "env"), nil, `succeeded: ["LANG=C.UTF-8"]`},
			{"variables", op(t, "env"), func(o *ops.Op) {
				o.Command.Env = []ops.EnvVar{{Name: "GODEBUG", Value: "x=1"}, {Name: "LANG", Value: "C"}}
			}, `succeeded: ["GODEBUG=x=1","LANG=C"]`},
			{"failure", op(t, "fail"), nil, `failed: OP_FAILED exit_code 3`},
			{"signal", op(t, "killed"), nil, `failed: OP_FAILED signal killed`},
			{"deadline", op(t, "stay"), func(o *ops.Op) { o.Timeout = 100 * time.Millisecond }, `failed: TIMED_OUT signal terminated`},
			{"descriptors", shell(t, "ls /proc/self/fd; readlink /proc/self/fd/0; umask; id -u"), nil,
				fmt.Sprintf("succeeded: 0\n1\n2\n3\n/dev/null\n0077\n%d", os.Geteuid())},
			{"limits", shell(t, "ulimit -n; ulimit -t; ulimit -v; ulimit -f; ulimit -c; ulimit -Hn"), func(o *ops.Op) {
				o.Command.Limits = ops.Limits{NoFile: 33, FSize: &size, CPU: 7 * time.Second, Memory: 1 << 30}
			}, "succeeded: 33\n7\n1048576\n8\n0\n33"},
			{"file size", shell(t, "head -c 8192 /dev/zero >big"), func(o *ops.Op) { o.Command.Limits.FSize = &size }, "failed: OP_FAILED exit_code 1"},
			{"capabilities", shell(t, "grep -E 'Cap(Prm|Eff|Amb)|NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\t'"), nil,
				"succeeded: CapPrm:0000000000000000\nCapEff:0000000000000000\nCapAmb:0000000000000000\nNoNewPrivs:1\nSeccomp:2"},
			{"a file of others", shell(t, "cat /var/log/nothing /root/.profile 2>&1 | wc -l; echo x >/tmp/inband-must-not-be"), nil, "failed: OP_FAILED exit_code 2"},
			{"a mount", shell(t, "mount -t tmpfs none /tmp; umount /proc; echo done"), nil, "succeeded: done"},
			{"another namespace", shell(t, "unshare -U true || echo no"), nil, "succeeded: no"},
			{"left behind", shell(t, `setsid sleep 1000 & until read -r name </proc/$!/comm && [ "$name" = sleep ]; do :; done`), nil, "succeeded: left sleep"},
			{"its own folder", shell(t, "echo mine >f; cat f; stat -c %a ."), nil, "succeeded: mine\n700"},
		} {
			o := c.op
			if c.do != nil {
				c.do(&o)
			}
			if raceEnabled {
				o.Command.Limits.Memory = 0
				if c.name == "limits" {
					continue
				}
			}
			if got := told(t, execute(t, put(o), `{}`)); got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, got, c.want)
			}
		}
	})
}

// told is an outcome in a line.
func told(t *testing.T, out ops.Outcome) string {
	t.Helper()
	var r Receipt
	if err := json.Unmarshal(out.Receipt, &r); err != nil || !r.Started && out.Fault == nil {
		t.Errorf("receipt: %v %s", err, out.Receipt)
	}
	if f := out.Fault; f != nil {
		for _, how := range []string{"exit_code", "signal"} {
			if v, ok := f.Details[how]; ok {
				return fmt.Sprintf("%s: %s %s %v", out.State, f.Code, how, v)
			}
		}
		return fmt.Sprintf("%s: %s %v", out.State, f.Code, f)
	}
	var o Output
	if err := json.Unmarshal(out.Result.Value, &o); err != nil {
		t.Fatal(err)
	}
	if o.LeftBehind != nil {
		o.Stdout += "left " + strings.Join(o.LeftBehind, " ")
	}
	return string(out.State) + ": " + strings.TrimSpace(o.Stdout)
}

// An op that requires namespaces has them, and its results and receipts say which.
func TestNamespaces(t *testing.T) {
	needNamespaces(t)
	names, err := proc.Namespaces(true)
	if err != nil {
		t.Fatal(err)
	}
	for network, own := range map[ops.Network]bool{"": true, ops.NetworkNone: true, ops.NetworkNetlink: false, ops.NetworkAny: false} {
		o := inNamespaces(shell(t, "echo $PPID /proc/[0-9]* | wc -w; for n in pid ipc mnt net; do readlink /proc/self/ns/$n; done; tail -n +3 /proc/net/dev | wc -l"))
		o.Command.Network, o.SideEffecting = network, network == ops.NetworkAny
		out := execute(t, o, `{}`)
		res := success(t, out)
		got := strings.Fields(res.Stdout)
		if n, _ := strconv.Atoi(got[0]); len(got) != 6 || n < 4 || n > 5 { // the parent, the init, the shell, wc and maybe echo
			t.Fatalf("network %q: got %q", network, got)
		}
		for i, n := range []string{"pid", "ipc", "mnt", "net"} {
			theirs, err := os.Readlink("/proc/self/ns/" + n)
			if err != nil || (got[1+i] == theirs) != (n == "net" && !own) {
				t.Errorf("network %q: %s, outside %s, %v", network, got[1+i], theirs, err)
			}
		}
		if own && got[5] != "1" {
			t.Errorf("network %q: %s interfaces", network, got[5])
		}
		var want []string
		for _, n := range names {
			if n != "net" || own {
				want = append(want, n)
			}
		}
		var r Receipt
		if err := json.Unmarshal(out.Receipt, &r); err != nil || !slices.Equal(r.Layers.Namespaces, want) || !slices.Equal(res.Layers.Namespaces, want) {
			t.Errorf("network %q: layers %+v and %+v, %v; want %v", network, r.Layers, res.Layers, err, want)
		}
	}
	if l := success(t, execute(t, op(t, "argv"), `{}`)).Layers; l.Namespaces != nil {
		t.Errorf("an op that requires none: %+v", l)
	}
}

// Secrets reach a program in namespaces, and cannot be read from the init around it.
func TestNamespacesWithSecrets(t *testing.T) {
	needNamespaces(t)
	config := testConfig
	config.Credentials = credentials(t)
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte(`#!/bin/sh
sum() { sha256sum | cut -c 1-64; }
printf %s "$TOKEN" | sum
cat "$1" | sum
tr '\0' ' ' </proc/1/cmdline
cat /proc/1/environ
exit 0
`), 0o700); err != nil {
		t.Fatal(err)
	}
	o := inNamespaces(shell(t, ""))
	o.Command.Argv = []ops.Arg{word(file)}
	o.Command.Argv = append(o.Command.Argv, param("token"))
	o.Command.Env = append(o.Command.Env, ops.EnvVar{Name: "TOKEN", Credential: "file:token"})
	o.Params = ops.Params{{Name: "token", Type: ops.Secret, Values: []string{"file:token"}, As: ops.AsDescriptor}}
	e, err := New(o, config)
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Execute(t.Context(), ops.Call{Params: []byte(`{"token":"file:token"}`)})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha(token)
	got := success(t, out)
	if got.Stdout != sum+"\n"+sum+"\ninband-init 4 " || strings.Count(got.Stderr, "Permission denied") != 1 {
		t.Errorf("got %q %q, want twice %s and no more of the init than its words", got.Stdout, got.Stderr, sum)
	}
	if r := received(t, out); r.Blotted != 0 || len(r.Credentials) != 1 {
		t.Errorf("receipt %+v", r)
	}
}

// A program that is replaced between its check and its start does not run there either.
func TestNamespacesProgramIsReplaced(t *testing.T) {
	needNamespaces(t)
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	file := script(t, folder, "program")
	o := op(t, "argv")
	o.Command.Argv = []ops.Arg{word(file)}
	e, err := prepare(inNamespaces(o), testConfig)
	if err != nil {
		t.Fatal(err)
	}
	p, err := e.examine(file, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, replaced := range []bool{false, true} {
		if replaced {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			script(t, folder, "program")
		}
		spec := proc.Spec{Argv: []string{file}, Timeout: time.Minute, OutputMax: 100, Scratch: e.scratch, Owner: owned(e.user)}
		if err := confine(&spec, e.box, p); err != nil {
			t.Fatal(err)
		}
		if spec.Inside == nil || spec.Confine != nil {
			t.Fatal("it is not in namespaces")
		}
		_, err := proc.Run(t.Context(), spec)
		var start *proc.StartError
		if replaced != (errors.As(err, &start) && strings.Contains(err.Error(), "was replaced or changed while it was started")) {
			t.Errorf("replaced %t: got %v", replaced, err)
		}
	}
}

// A layer that is not what the gateway says is found by the init, and nothing runs.
func TestNamespacesLayersAreCompared(t *testing.T) {
	box, err := sandbox.New(sandbox.Policy{Program: "/bin/true", Require: []string{sandbox.LayerNamespaces}, Namespaces: []string{"pid"}})
	if err != nil {
		t.Fatal(err)
	}
	good := task{Policy: box.Policy(), Layers: box.Layers()}
	for name, change := range map[string]func(*task){
		"":           func(*task) {},
		"seccomp":    func(k *task) { k.Layers.Seccomp = "sha256:0" },
		"limits":     func(k *task) { k.Policy.Limits.NoFile = 7 },
		"user":       func(k *task) { k.Layers.RunAs.UID = 7 },
		"namespaces": func(k *task) { k.Layers.Namespaces = nil },
	} {
		k := good
		change(&k)
		raw, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hooks(raw); (err == nil) != (name == "") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := hooks([]byte("{")); err == nil {
		t.Error("no task: no error")
	}
}

// The canary of ops with namespaces finds that they are not there.
func TestCanaryOfNamespaces(t *testing.T) {
	needNamespaces(t)
	o := op(t, "argv")
	o.Command.Argv, o.Command.RunAs = []ops.Arg{word("/bin/true")}, ""
	for _, network := range []ops.Network{ops.NetworkNone, ops.NetworkNetlink} {
		o.Command.Network = network
		e, err := prepare(inNamespaces(o), testConfig)
		if err != nil {
			t.Fatal(err)
		}
		bound := []ops.Bound{{Op: o, Executor: e}}
		if err := Prove(t.Context(), bound); err != nil {
			t.Errorf("with them: %v", err)
		}
		e.confine = func(p sandbox.Policy) (confiner, error) {
			box, err := newSandbox(p)
			return without{box}, err
		}
		err = Prove(t.Context(), bound)
		for _, want := range []string{"be in the gateway's namespace pid", "be in the gateway's namespace ipc", "be in the gateway's namespace mount"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("without them: got %v, want %q", err, want)
			}
		}
		if (network == ops.NetworkNone) != (err != nil && strings.Contains(err.Error(), "namespace net")) {
			t.Errorf("without them: got %v", err)
		}
	}
}

// without says that there are namespaces and has none made.
type without struct{ confiner }

// 64 at once do not mix, and leave nothing.
func TestManyInNamespaces(t *testing.T) {
	needNamespaces(t)
	o := inNamespaces(shell(t, ""))
	o.Command.Argv = []ops.Arg{word("/bin/echo"), param("p")}
	o.Params = ops.Params{{Name: "p", Type: ops.Pattern, Pattern: "[a-z0-9.]+", Max: 40}}
	e, err := New(o, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	count := func() int {
		names, _ := os.ReadDir("/proc/self/fd")
		return len(names)
	}
	before := count()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			value := fmt.Sprintf("v%d", i)
			out, err := e.Execute(context.Background(), ops.Call{Params: json.RawMessage(`{"p":"` + value + `"}`)})
			if err != nil || out.State != ops.Succeeded || !strings.Contains(string(out.Result.Value), `"stdout":"`+value+`\n"`) {
				t.Errorf("%s: got %+v %v, %v", value, out, out.Fault, err)
			}
		})
	}
	wg.Wait()
	if after := count(); after > before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

// Where no namespaces can be had, an op that requires them is disabled and says why.
func TestNamespacesAreOff(t *testing.T) {
	if os.Getenv("WITHOUT_NAMESPACES") == "" {
		needNamespaces(t)
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		// In a user namespace in which there may be none of pids.
		cmd := exec.Command("/usr/bin/unshare", "--user", "--map-root-user", "/bin/sh", "-c",
			`echo 0 >/proc/sys/user/max_pid_namespaces && exec "$0" -test.run "^TestNamespacesAreOff$" -test.v`, exe)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "TMPDIR=" + t.TempDir(), "WITHOUT_NAMESPACES=1"}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestNamespacesAreOff") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	o := op(t, "argv")
	e, err := prepare(inNamespaces(o), testConfig)
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Execute(t.Context(), ops.Call{Params: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	f := failure(t, out, ops.Failed, ops.NoSandbox)
	if !reflect.DeepEqual(f.Details["missing"], []string{sandbox.LayerNamespaces}) || f.Details["started"] != false || !strings.Contains(f.Message, "as many as the machine lets one user have") {
		t.Errorf("got %v %v", f, f.Details)
	}
	if got := Disabled([]ops.Bound{{Op: o, Executor: e}}); len(got) != 1 {
		t.Errorf("disabled: %v", got)
	}
}

// BenchmarkNamespaces alternates between an op outside of namespaces and the same inside,
// and prints both. It asserts nothing about time.
func BenchmarkNamespaces(b *testing.B) {
	needNamespaces(b)
	o := op(b, "argv")
	o.Command.Argv, o.Command.RunAs = []ops.Arg{word("/bin/echo"), word("hello")}, ""
	call := ops.Call{Params: []byte(`{}`)}
	const rounds = 200
	var took [2][]time.Duration
	var executors [2]ops.Executor
	for i, o := range []ops.Op{o, inNamespaces(o)} {
		e, err := New(o, testConfig)
		if err != nil {
			b.Fatal(err)
		}
		executors[i] = e
	}
	for range rounds {
		for i, e := range executors {
			start := time.Now()
			if out, err := e.Execute(b.Context(), call); err != nil || out.State != ops.Succeeded {
				b.Fatal(out, err)
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	fmt.Printf("an op %d µs, the same in namespaces %d µs (medians of %d)\n", took[0][rounds/2].Microseconds(), took[1][rounds/2].Microseconds(), rounds)
	for b.Loop() { // the figures above are the benchmark
	}
}
