package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"inband/exec/proc"
	"inband/ops"
)

func word(s string) ops.Arg  { return ops.Arg{Word: s} }
func param(s string) ops.Arg { return ops.Arg{Param: s} }

// testConfig lets ops run as root, since the test binary stands where nobody else may
// look.
var testConfig = Config{AllowRoot: true}

// own is run_as for the user that the test runs as.
func own() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return ""
}

// op is an op that runs a mode of this test binary's helper.
func op(t testing.TB, mode string, rest ...ops.Arg) ops.Op {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return ops.Op{Name: "t.op", Provider: "t", Summary: "For tests", Timeout: time.Minute,
		Command: &ops.Command{Argv: append([]ops.Arg{word(exe), word("helper"), word(mode)}, rest...), OutputMax: 64 << 10, RunAs: own()}}
}

func execute(t testing.TB, op ops.Op, params string) ops.Outcome {
	t.Helper()
	e, err := New(op, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Execute(t.Context(), ops.Call{Op: op.Name, Params: json.RawMessage(params)})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func success(t testing.TB, out ops.Outcome) (o Output) {
	t.Helper()
	if out.State != ops.Succeeded {
		t.Fatalf("got %s %v, want a success", out.State, out.Fault)
	}
	if err := json.Unmarshal(out.Result.Value, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func failure(t testing.TB, out ops.Outcome, state ops.State, code ops.Code) *ops.Fault {
	t.Helper()
	if out.State != state || out.Fault == nil || out.Fault.Code != code {
		t.Fatalf("got %s %v, want %s with %s", out.State, out.Fault, state, code)
	}
	return out.Fault
}

// everyType has a parameter of each type that op files may use.
var everyType = ops.Params{
	{Name: "e", Type: ops.Enum, Values: []string{"red", "dark blue"}, Optional: true},
	{Name: "p", Type: ops.Pattern, Pattern: `[a-z;$()` + "`" + ` *~|&<>'"\\-]*`, Max: 100, Optional: true},
	{Name: "i", Type: ops.Int, Min: -5, Max: 500, Optional: true},
	{Name: "b", Type: ops.Bool, Then: []string{"--on", "now"}, Optional: true},
	{Name: "c", Type: ops.Bool, Then: []string{"--x"}, Else: []string{"--no-x"}, Optional: true},
}

func TestArgv(t *testing.T) {
	o := ops.Op{Name: "x", Provider: "p", Summary: "s", Params: slices.Clone(everyType), Command: &ops.Command{Argv: []ops.Arg{
		word("/bin/x"), param("b"), param("c"), word("-n"), param("i"), word("--"), param("e"), param("p"), param("p"), word("")}}}
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	for raw, want := range map[string][]string{
		`{}`:                     {"/bin/x", "-n", "--", ""},
		`{"b":true,"c":true}`:    {"/bin/x", "--on", "now", "--x", "-n", "--", ""},
		`{"b":false,"c":false}`:  {"/bin/x", "--no-x", "-n", "--", ""},
		`{"i":-5}`:               {"/bin/x", "-n", "-5", "--", ""},
		`{"i":1e2}`:              {"/bin/x", "-n", "100", "--", ""},
		`{"e":"dark blue"}`:      {"/bin/x", "-n", "--", "dark blue", ""},
		`{"p":"a;id $(id) *"}`:   {"/bin/x", "-n", "--", "a;id $(id) *", "a;id $(id) *", ""},
		`{"p":""}`:               {"/bin/x", "-n", "--", "", "", ""},
		`{"p":"a b","e":"red"}`:  {"/bin/x", "-n", "--", "red", "a b", "a b", ""},
		`{"p":"'a' \"b\" c\\d"}`: {"/bin/x", "-n", "--", `'a' "b" c\d`, `'a' "b" c\d`, ""},
	} {
		values, _, fault := o.Params.Parse(json.RawMessage(raw))
		if fault != nil {
			t.Errorf("%s: %v", raw, fault)
		} else if got := Argv(&o, values); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", raw, got, want)
		}
	}
}

// A value reaches the program as one word, byte for byte, and no shell sees it.
func TestNoShell(t *testing.T) {
	for _, value := range []string{"a;id $(id) `id`", "*", "~", "$HOME", "a | id", "a && id", "'", `"`, `\`, "a > b", ";id", "$(id)"} {
		o := op(t, "argv", word("--"), param("p"))
		o.Params = ops.Params{everyType[1]}
		o.Params[0].Pattern = `[^\x00]*`
		raw, _ := json.Marshal(map[string]string{"p": value})
		out := success(t, execute(t, o, string(raw)))
		var got []string
		if err := json.Unmarshal([]byte(out.Stdout), &got); err != nil || !slices.Equal(got, []string{"--", value}) {
			t.Errorf("%q arrived as %q (%v)", value, got, err)
		}
		o.Command.Argv = []ops.Arg{word("/bin/echo"), param("p")}
		if out := success(t, execute(t, o, string(raw))); out.Stdout != value+"\n" {
			t.Errorf("/bin/echo %q printed %q", value, out.Stdout)
		}
	}
}

func TestBadInput(t *testing.T) {
	o := op(t, "argv", param("e"), param("p"), param("i"), param("b"), param("c"))
	o.Params = slices.Clone(everyType)
	for _, p := range everyType {
		for what, value := range map[string]string{
			"NUL": "a\x00b", "line break": "a\nb", "1 MiB": strings.Repeat("a", 1<<20), "leading dash": "-a", "command": ";id\n", "escape": "\x1b[2J", "C1": "\u0085"} {
			raw, _ := json.Marshal(map[string]string{p.Name: value})
			f := failure(t, execute(t, o, string(raw)), ops.Failed, ops.InvalidParams)
			if f.Details["pointer"] != "/"+p.Name {
				t.Errorf("%s for type %s: pointer %v", what, p.Type, f.Details["pointer"])
			}
		}
		if p.Type != ops.Pattern {
			raw, _ := json.Marshal(map[string]string{p.Name: ";id"})
			failure(t, execute(t, o, string(raw)), ops.Failed, ops.InvalidParams)
		}
		for _, value := range []string{`null`, `[]`, `{}`, `1.5`, "\"\xff\""} {
			if f := execute(t, o, `{"`+p.Name+`":`+value+`}`); f.State != ops.Failed {
				t.Errorf("%s for type %s: got %s", value, p.Type, f.State)
			}
		}
	}
	for _, raw := range []string{`{"env":{}}`, `{"cwd":"/"}`, `{"E":"red"}`, `{"e":"red","e":"red"}`, `[]`, `x`} {
		failure(t, execute(t, o, raw), ops.Failed, ops.InvalidParams)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("GATEWAY_TOKEN", "secret")
	if out := success(t, execute(t, op(t, "env"), `{}`)); out.Stdout != `["LANG=C.UTF-8"]`+"\n" {
		t.Errorf("got %s", out.Stdout)
	}
}

func TestOutcomes(t *testing.T) {
	out := execute(t, op(t, "argv", word("a")), `{}`)
	if o := success(t, out); o.Stdout != "[\"a\"]\n" || o.ExitCode != 0 || o.Truncated || out.Result.Show != "/stdout" {
		t.Errorf("success: got %+v, show %s", o, out.Result.Show)
	}
	var members map[string]any
	if err := json.Unmarshal(out.Result.Value, &members); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"exit_code", "stdout", "stderr", "truncated", "dropped_bytes", "duration_ms"} {
		if _, ok := members[name]; !ok {
			t.Errorf("the result has no %s: %s", name, out.Result.Value)
		}
	}
	out = execute(t, op(t, "stderr"), `{}`)
	if o := success(t, out); o.Stderr != "only here" || out.Result.Show != "/stderr" {
		t.Errorf("stderr: got %+v, show %s", o, out.Result.Show)
	}
	if o := success(t, execute(t, op(t, "binary"), `{}`)); o.Stdout != "a\uFFFD\x00b" || o.StdoutBase64 != "Yf8AYg==" {
		t.Errorf("binary: got %+v", o)
	}
	much := op(t, "much")
	much.Command.OutputMax = 1001
	if o := success(t, execute(t, much, `{}`)); !o.Truncated || o.DroppedBytes != 10000-1000 || o.StdoutBase64 != "" ||
		!strings.Contains(o.Stdout, "é\n… 9000 bytes dropped …\né") {
		t.Errorf("much: got %+v", o)
	}

	f := failure(t, execute(t, op(t, "fail"), `{}`), ops.Failed, ops.OpFailed)
	if f.Details["exit_code"] != 3 || f.Details["stdout"] != "on stdout\n" || f.Details["started"] != true ||
		!strings.HasSuffix(f.Message, "exit code 3: last  [31mline") {
		t.Errorf("fail: got %q %v", f.Message, f.Details)
	}
	if s := f.Details["stderr"].(string); len(s) > maxDetail+10 || !strings.HasSuffix(s, "line\n") {
		t.Errorf("fail: %d bytes of stderr", len(s))
	}
	f = failure(t, execute(t, op(t, "killed"), `{}`), ops.Failed, ops.OpFailed)
	if f.Details["signal"] != "killed" || !strings.Contains(f.Message, "signal") {
		t.Errorf("killed: got %v %v", f, f.Details)
	}
	slow := op(t, "stay")
	slow.Timeout = 50 * time.Millisecond
	f = failure(t, execute(t, slow, `{}`), ops.Failed, ops.TimedOut)
	if f.Details["started"] != true {
		t.Errorf("deadline: got %v", f.Details)
	}
}

func TestCancel(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	o := op(t, "ready", word(ready))
	o.SideEffecting, o.Command.FS.Write = true, []string{filepath.Dir(ready)}
	e, err := New(o, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan ops.Outcome)
	go func() {
		out, err := e.Execute(ctx, ops.Call{Params: json.RawMessage(`{}`)})
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(ready); err == nil {
			break
		}
		if time.Since(start) > time.Minute {
			t.Fatal("the program has not started")
		}
	}
	cancel()
	if f := failure(t, <-done, ops.Cancelled, ops.CallCancelled); f.Details["started"] != true {
		t.Errorf("got %v", f.Details)
	}
	out, err := e.Execute(ctx, ops.Call{Params: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if f := failure(t, out, ops.Cancelled, ops.CallCancelled); f.Details["started"] != false {
		t.Errorf("before the start: got %v", f.Details)
	}
	late, stop := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer stop()
	out, err = e.Execute(late, ops.Call{Params: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	failure(t, out, ops.Failed, ops.TimedOut)
}

// A success says so when a process of it could not be killed.
func TestSuccessWithSurvivors(t *testing.T) {
	e, err := prepare(op(t, "argv"), testConfig)
	if err != nil {
		t.Fatal(err)
	}
	if o := success(t, e.outcome(t.Context(), proc.Result{Survivors: 2, LeftBehind: []string{"sleep"}}, e.receipt(), nil)); o.Survivors != 2 || len(o.LeftBehind) != 1 {
		t.Errorf("got %+v", o)
	}
}

// script puts an executable file into folder.
func script(t *testing.T, folder, name string) string {
	t.Helper()
	file := filepath.Join(folder, name)
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestProgramsThatMayStart(t *testing.T) {
	dir := t.TempDir()
	good := script(t, dir, "good")
	if err := checkProgram(good); err != nil {
		t.Errorf("good: %v", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	if err := checkProgram(link); err != nil {
		t.Errorf("link to good: %v", err)
	}
	writable := script(t, dir, "writable")
	os.Chmod(writable, 0o777)
	toWritable := filepath.Join(dir, "to-writable")
	os.Symlink(writable, toWritable)
	plain := script(t, dir, "plain")
	os.Chmod(plain, 0o644)
	open := filepath.Join(dir, "open")
	os.Mkdir(open, 0o700)
	inOpen := script(t, open, "program")
	os.Chmod(open, 0o777)
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"): "file does not exist",
		"true":                        "absolute",
		"/bin/../bin/true":            "absolute",
		dir:                           "not a regular file",
		plain:                         "not executable",
		writable:                      "anybody may write",
		toWritable:                    "anybody may write",
		inOpen:                        "folder " + open + ": anybody may write",
		good + "/x":                   "not a directory",
	} {
		if err := checkProgram(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), filepath.Base(path)) && path != toWritable {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	if os.Geteuid() == 0 {
		foreign := script(t, dir, "foreign")
		if err := os.Chown(foreign, 4321, 0); err != nil {
			t.Fatal(err)
		}
		if err := checkProgram(foreign); err == nil || !strings.Contains(err.Error(), "belongs to user 4321") {
			t.Errorf("foreign: got %v", err)
		}
		group := script(t, dir, "group")
		os.Chown(group, 0, 4321)
		os.Chmod(group, 0o775)
		if err := checkProgram(group); err == nil || !strings.Contains(err.Error(), "group 4321 may write") {
			t.Errorf("group: got %v", err)
		}
		// What stands between a name and its program: a folder in the middle of two
		// links, a folder of a group, a link that somebody else has made.
		middle := filepath.Join(dir, "middle")
		theirs, ours := filepath.Join(dir, "theirs"), filepath.Join(dir, "ours")
		if err := errors.Join(os.Mkdir(middle, 0o755), os.Symlink(good, middle+"/good"), os.Symlink("middle/good", ours), os.Symlink(good, theirs), os.Lchown(theirs, 4321, 0)); err != nil {
			t.Fatal(err)
		}
		if err := checkProgram(ours); err != nil {
			t.Errorf("through a folder: %v", err)
		}
		if err := checkProgram(theirs); err == nil || !strings.Contains(err.Error(), "the link "+theirs+": it belongs to user 4321") {
			t.Errorf("a link of somebody else: got %v", err)
		}
		os.Chmod(middle, 0o777)
		if err := checkProgram(ours); err == nil || !strings.Contains(err.Error(), "folder "+middle+": anybody may write") {
			t.Errorf("a link in an open folder: got %v", err)
		}
		os.Chown(middle, 0, 4321)
		os.Chmod(middle, 0o775)
		if err := checkProgram(ours); err == nil || !strings.Contains(err.Error(), "folder "+middle+": group 4321 may write") {
			t.Errorf("a link in the folder of a group: got %v", err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	missing := op(t, "argv")
	missing.Command.Argv[0].Word = "/nonexistent/program"
	if _, err := New(missing, testConfig); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/nonexistent/program") {
		t.Errorf("missing: got %v", err)
	}
	dir := t.TempDir()
	harmless := filepath.Join(dir, "harmless")
	if err := os.Symlink("/usr/bin/env", harmless); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*ops.Op){
		"no command":   func(o *ops.Op) { o.Command = nil },
		"no argv":      func(o *ops.Op) { o.Command.Argv = nil },
		"a parameter":  func(o *ops.Op) { o.Command.Argv[0] = param("e") },
		"undeclared":   func(o *ops.Op) { o.Command.Argv = append(o.Command.Argv, param("zz")) },
		"no output":    func(o *ops.Op) { o.Command.OutputMax = 0 },
		"much output":  func(o *ops.Op) { o.Command.OutputMax = 1 << 40 },
		"long timeout": func(o *ops.Op) { o.Timeout = time.Hour },
		"free text": func(o *ops.Op) {
			o.Params = ops.Params{{Name: "t", Type: ops.Text, Max: 9}}
			o.Command.Argv = append(o.Command.Argv, param("t"))
		},
		"env in disguise": func(o *ops.Op) { o.Command.Argv = []ops.Arg{word(harmless), param("e")} },
	} {
		o := op(t, "argv")
		o.Params = slices.Clone(everyType)
		change(&o)
		if e, err := New(o, testConfig); err == nil {
			t.Errorf("%s: got %v", name, e)
		}
	}
}

const opFile = `provider: t
ops:
  t.good: {summary: a, side_effecting: false, argv: [/bin/true]}
  t.missing: {summary: a, side_effecting: false, argv: [%s]%s}
`

// A missing program leaves its op listed, its calls failing plainly, and the
// others working; once it is there, the op works.
func TestBind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "later")
	runAs := ""
	if own() != "" {
		runAs = ", run_as: " + own()
	}
	file, err := ops.ReadFile("t.yaml", fmt.Appendf(nil, opFile, path, runAs))
	if err != nil {
		t.Fatal(err)
	}
	bound, problems := Bind(file, testConfig)
	if len(bound) != 2 || len(problems) != 1 || problems[0].Op != "t.missing" || problems[0].Line != 4 || !errors.Is(problems[0], fs.ErrNotExist) {
		t.Fatalf("got %v, %v", bound, problems)
	}
	call := func(b ops.Bound) ops.Outcome {
		out, err := b.Executor.Execute(t.Context(), ops.Call{Op: b.Op.Name, Params: json.RawMessage(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	success(t, call(bound[0]))
	f := failure(t, call(bound[1]), ops.Failed, ops.Unavailable)
	if !strings.Contains(f.Message, path) || f.Details["started"] != false {
		t.Errorf("got %v %v", f, f.Details)
	}
	script(t, filepath.Dir(path), "later")
	success(t, call(bound[1]))
	os.Chmod(path, 0o777)
	failure(t, call(bound[1]), ops.Failed, ops.Unavailable)
}

// Every shipped op whose program this machine has runs with each of its
// examples. What an example needs and a machine may lack (a folder, the right to
// read it, PSI) makes an op fail, and that is said.
func TestShippedOps(t *testing.T) {
	files, err := ops.ReadDir(ops.Files)
	if err != nil {
		t.Fatal(err)
	}
	var all []ops.Bound
	for _, file := range files {
		bound, problems := Bind(file, testConfig)
		for _, p := range problems {
			if !errors.Is(p, fs.ErrNotExist) {
				t.Errorf("%v", p)
			}
		}
		all = append(all, bound...)
	}
	if _, err := ops.New(all...); err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if l := b.Op.Command.Limits; l.NoFile == 0 || l.FSize == nil || l.CPU == 0 || l.Memory == 0 {
			t.Errorf("%s has no limit for something: %+v", b.Op.Name, l)
		}
		for _, params := range b.Op.Examples.Accept {
			out, err := b.Executor.Execute(t.Context(), ops.Call{Op: b.Op.Name, Params: params})
			switch {
			case err != nil:
				t.Errorf("%s %s: %v", b.Op.Name, params, err)
			case out.State == ops.Succeeded:
			case out.Fault.Code == ops.Unavailable, out.Fault.Code == ops.OpFailed && strings.Contains(out.Fault.Message, "No such file or directory"),
				out.Fault.Code == ops.OpFailed && strings.Contains(out.Fault.Message, "Permission denied"):
				t.Logf("%s %s: %v", b.Op.Name, params, out.Fault)
			default:
				t.Errorf("%s %s: %v %v", b.Op.Name, params, out.Fault, out.Fault.Details)
			}
		}
	}
}

func TestShippedOpsReadTheMachine(t *testing.T) {
	files, err := ops.ReadDir(fstest.MapFS{"t.yaml": {Mode: 0o644, Data: []byte("provider: t\nops:\n" +
		"  t.release: {summary: a, side_effecting: false, argv: [/usr/bin/cat, /proc/sys/kernel/osrelease], fs: {read: [/proc/sys]}}\n")}})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	bound, _ := Bind(files[0], testConfig)
	out, err := bound[0].Executor.Execute(t.Context(), ops.Call{Params: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if o := success(t, out); o.Stdout != string(want) {
		t.Errorf("got %q, want %q", o.Stdout, want)
	}
}

// Calls at once do not mix (run with -race).
func TestManyAtOnce(t *testing.T) {
	o := op(t, "argv", word("--"), param("p"))
	o.Command.Argv = []ops.Arg{word("/bin/echo"), param("p")}
	o.Params = ops.Params{{Name: "p", Type: ops.Pattern, Pattern: "[a-z0-9.]+", Max: 40}}
	e, err := New(o, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for i := range 8 {
		go func() {
			var err error
			for j := range 10 {
				value := fmt.Sprintf("v%d.%d", i, j)
				out, e := e.Execute(context.Background(), ops.Call{Params: json.RawMessage(`{"p":"` + value + `"}`)})
				if e != nil || out.State != ops.Succeeded || !strings.Contains(string(out.Result.Value), `"stdout":"`+value+`\n"`) {
					err = fmt.Errorf("%s: got %+v, %v", value, out, e)
				}
			}
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkBars alternates between an op in its sandbox and the same command by os/exec
// without one, so that both see the same machine, and prints how their rates compare,
// in the form that make bench promises. It asserts nothing about time.
func BenchmarkBars(b *testing.B) {
	o := op(b, "argv")
	o.Command.Argv = []ops.Arg{word("/bin/echo"), word("hello")}
	o.Command.Limits.FSize = new(int64) // as the ops of host.yaml
	e, err := New(o, testConfig)
	if err != nil {
		b.Fatal(err)
	}
	call := ops.Call{Params: json.RawMessage(`{}`)}
	// In turns of several, so that what is made ahead of a call is paid for in our turn.
	const rounds, each = 20, 25
	turn := func(f func()) time.Duration {
		start := time.Now()
		for range each {
			f()
		}
		return time.Since(start)
	}
	var ratios []float64
	var ours, plain time.Duration
	for range rounds {
		o := turn(func() {
			if out, err := e.Execute(b.Context(), call); err != nil || out.State != ops.Succeeded {
				b.Fatal(out, err)
			}
		})
		p := turn(func() {
			cmd := exec.Command("/bin/echo", "hello")
			cmd.Env = standardEnvironment // a program does much for its locale
			if out, err := cmd.Output(); err != nil || len(out) == 0 {
				b.Fatal(err)
			}
		})
		ours, plain, ratios = ours+o, plain+p, append(ratios, float64(p)/float64(o))
	}
	slices.Sort(ratios)
	ratio := ratios[rounds/2]
	verdict := "ok"
	if ratio < 0.85 {
		verdict = "short"
	}
	fmt.Printf("bar sandboxed-command %.2f >=0.85 %s\n", ratio, verdict)
	fmt.Printf("a sandboxed op %d µs, the same by os/exec without a sandbox %d µs (median of the ratios of %d rounds of %d)\n",
		ours.Microseconds()/(rounds*each), plain.Microseconds()/(rounds*each), rounds, each)
	for b.Loop() { // the figures above are the benchmark
		_ = ratio
	}
}
