package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"inband/ops"
)

// pathOp prints the file that its parameter names.
func pathOp(t *testing.T, root string) ops.Op {
	o := op(t, "")
	o.Command.Argv = []ops.Arg{word("/bin/cat")}
	o.Params = ops.Params{{Name: "path", Type: ops.Path, Root: root, Kind: ops.KindFile}}
	return o
}

// quarry is a folder with everything that a path must not lead to (x33, x34, x61).
func quarry(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	err = errors.Join(os.Mkdir(root, 0o755), os.Mkdir(root+"/a", 0o755),
		os.WriteFile(root+"/file", []byte("contents"), 0o644), os.WriteFile(root+"/a/b", []byte("deeper"), 0o644),
		os.WriteFile(root+"/{a,b}", []byte("literal"), 0o644), os.WriteFile(dir+"/outside", []byte("secret"), 0o644),
		os.Symlink("/etc", root+"/out"), os.Symlink("../outside", root+"/up"), os.Symlink("a/b", root+"/in"),
		os.Symlink("loop", root+"/loop"), os.Symlink("nowhere", root+"/dangling"),
		unix.Mkfifo(root+"/fifo", 0o666), os.Rename(dir+"/s", root+"/socket"))
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := unix.Mknod(root+"/dev", unix.S_IFCHR|0o666, 0x105); err != nil { // zero
			t.Fatal(err)
		}
	}
	return root
}

func TestPathParameters(t *testing.T) {
	root := quarry(t)
	type want struct {
		code ops.Code // "" is success
		says string
	}
	found := func(contents string) want { return want{"", contents} }
	for value, want := range map[string]want{
		"file":                           found("contents"),
		"./file":                         found("contents"),
		"a//b":                           found("deeper"),
		root + "/a/b":                    found("deeper"),
		"in":                             found("deeper"),
		"{a,b}":                          found("literal"),
		"*":                              {ops.NotFound, "no such file"},
		"$HOME/.ssh/id_rsa":              {ops.NotFound, "no such file"},
		"~root/.bashrc":                  {ops.NotFound, "no such file"},
		"$(id)":                          {ops.NotFound, "no such file"},
		"file /etc/shadow":               {ops.NotFound, "no such file"},
		"file/x":                         {ops.NotFound, "not a directory"},
		"dangling":                       {ops.NotFound, "no such file"},
		"loop":                           {ops.NotFound, "too many levels"},
		"file\t/etc/shadow":              {ops.InvalidParams, "control character"},
		"../../etc/shadow":               {ops.InvalidParams, "way up"},
		"file/../../outside":             {ops.InvalidParams, "way up"},
		"a/../out/passwd":                {ops.InvalidParams, "way up"},
		"/etc/shadow":                    {ops.InvalidParams, "not below"},
		root + "x":                       {ops.InvalidParams, "not below"},
		"":                               {ops.InvalidParams, "empty"},
		".":                              {ops.InvalidParams, "folder"},
		"a":                              {ops.InvalidParams, "it is a folder"},
		"out/":                           {ops.InvalidParams, "folder"},
		"out":                            {ops.InvalidParams, "leads out"},
		"out/passwd":                     {ops.InvalidParams, "leads out"},
		"./out//passwd":                  {ops.InvalidParams, "leads out"},
		"up":                             {ops.InvalidParams, "leads out"},
		"fifo":                           {ops.InvalidParams, "it is a pipe"},
		"socket":                         {ops.InvalidParams, "it is a socket"},
		"dev":                            {ops.InvalidParams, "it is a device"},
		strings.Repeat("a/", 2000) + "a": {ops.NotFound, "no such file"},
		strings.Repeat("a", 300):         {ops.NotFound, "name too long"},
	} {
		if value == "dev" && os.Geteuid() != 0 {
			continue
		}
		raw, _ := json.Marshal(map[string]string{"path": value})
		for _, as := range []string{"", ops.AsArgument} {
			o := pathOp(t, root)
			if o.Params[0].As = as; as == ops.AsArgument {
				o.Command.Argv = append(o.Command.Argv, word("--"), param("path"))
				o.Command.FS.Read = []string{root}
			}
			out := execute(t, o, string(raw))
			if want.code == "" {
				if got := success(t, out); got.Stdout != want.says {
					t.Errorf("%q as %q: got %q, want %q", value, as, got.Stdout, want.says)
				}
				continue
			}
			f := failure(t, out, ops.Failed, want.code)
			if !strings.Contains(f.Message, want.says) || f.Details["pointer"] != "/path" || len(f.Message) > 1000 {
				t.Errorf("%q as %q: got %v %v, want %q", value, as, f, f.Details, want.says)
			}
			if strings.Contains(f.Message, "nothing ran") != (f.Details["started"] == false) {
				t.Errorf("%q as %q: got %v %v", value, as, f, f.Details)
			}
		}
	}
}

// A file is handed over although the sandbox gives the process no way to it, and it is
// the one that was opened, whatever stands at its path by then.
func TestPathSwapped(t *testing.T) {
	root := quarry(t)
	e, err := prepare(pathOp(t, root), testConfig)
	if err != nil {
		t.Fatal(err)
	}
	e.box = between{e.box, func() {
		if err := errors.Join(os.Rename(root+"/a", root+"/c"), os.Symlink("/etc", root+"/a")); err != nil {
			t.Error(err)
		}
	}}
	call := ops.Call{Params: json.RawMessage(`{"path":"a/b"}`)}
	out, err := e.Execute(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	if got := success(t, out); got.Stdout != "deeper" {
		t.Errorf("got %q", got.Stdout)
	}
}

func TestFolderParameter(t *testing.T) {
	root := quarry(t)
	o := pathOp(t, root)
	o.Params[0].Kind, o.Params[0].As = ops.KindDir, ops.AsArgument
	o.Command.Argv = []ops.Arg{word("/bin/ls"), word("--"), param("path")}
	o.Command.FS.Read = []string{root}
	if got := success(t, execute(t, o, `{"path":"./a/"}`)); got.Stdout != "b\n" {
		t.Errorf("got %q", got.Stdout)
	}
	failure(t, execute(t, o, `{"path":"file"}`), ops.Failed, ops.InvalidParams)
	o.Params[0].Root = root + "/nowhere"
	if f := failure(t, execute(t, o, `{"path":"."}`), ops.Failed, ops.Unavailable); !strings.Contains(f.Message, "root of parameter path") {
		t.Errorf("got %v", f)
	}
	// No link leads out of everything.
	o.Params[0].Root = "/"
	if err := os.Symlink(root+"/a", root+"/absolute"); err != nil {
		t.Fatal(err)
	}
	if got := success(t, execute(t, o, `{"path":"`+root+`/absolute"}`)); got.Stdout != "b\n" {
		t.Errorf("got %q", got.Stdout)
	}
}

func TestTextAndDuration(t *testing.T) {
	o := op(t, "")
	o.Command.Argv = []ops.Arg{word("/bin/cat"), word("-")}
	o.Params = ops.Params{{Name: "text", Type: ops.Text, Max: ops.MaxText, Optional: true}}
	long := strings.Repeat("é\n", 20000)
	for _, text := range []string{"", "-x\n$(id)\tü", long} {
		raw, _ := json.Marshal(map[string]string{"text": text})
		o.Command.OutputMax = 128 << 10
		if got := success(t, execute(t, o, string(raw))); got.Stdout != text {
			t.Errorf("%.20q arrived as %.20q (%d bytes of %d)", text, got.Stdout, len(got.Stdout), len(text))
		}
	}
	if got := success(t, execute(t, o, `{}`)); got.Stdout != "" {
		t.Errorf("absent: got %q", got.Stdout)
	}
	o = op(t, "argv", param("for"), param("host"))
	o.Params = ops.Params{{Name: "for", Type: ops.Duration, Min: 0, Max: int64(ops.MaxDuration), Unit: "s"}, {Name: "host", Type: ops.Host}}
	for raw, want := range map[string]string{
		`{"for":"90s","host":"A.example"}`:     `["90","a.example"]`,
		`{"for":"1h30m","host":"2001:DB8::1"}`: `["5400","2001:db8::1"]`,
	} {
		if got := success(t, execute(t, o, raw)); got.Stdout != want+"\n" {
			t.Errorf("%s: got %s, want %s", raw, got.Stdout, want)
		}
	}
	for _, raw := range []string{`{"for":"1500ms","host":"a"}`, `{"for":"1s","host":"-a"}`, `{"for":"1s","host":"a:80"}`} {
		failure(t, execute(t, o, raw), ops.Failed, ops.InvalidParams)
	}
}

// What belongs to a process is opened by nobody for a call. The gateway would open it
// with its own rights, as itself: its memory, the descriptors that it holds for other
// calls, the environment of their programs.
func TestPathsOfProcesses(t *testing.T) {
	const value = "the secret of another call"
	other, err := sealed([]byte(value))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	o := pathOp(t, "/")
	if os.Geteuid() == 0 {
		o.Command.RunAs = nobody
	}
	child := exec.Command("/bin/cat")
	child.Env = []string{"TOKEN=" + value}
	if o.Command.RunAs == nobody { // as another op's program is
		child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: overflow, Gid: overflow}}
	}
	if in, err := child.StdinPipe(); err != nil {
		t.Fatal(err)
	} else {
		defer child.Wait()
		defer in.Close()
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		fmt.Sprintf("/proc/self/fd/%d", other.Fd()), fmt.Sprintf("/proc/thread-self/fd/%d", other.Fd()),
		fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), other.Fd()), fmt.Sprintf("/dev/fd/%d", other.Fd()),
		"/proc/self/maps", "/proc/self/cmdline", "/proc/self/environ", "/proc/self/mem", "/proc/self/root/etc/passwd", "/proc/self/task/../maps",
		fmt.Sprintf("/proc/%d/environ", child.Process.Pid), fmt.Sprintf("/proc/%d/maps", child.Process.Pid), "/proc/1/cmdline",
	} {
		params, err := json.Marshal(map[string]string{"path": path})
		if err != nil {
			t.Fatal(err)
		}
		out := execute(t, o, string(params))
		if out.State == ops.Succeeded || out.Fault.Details["started"] == true {
			t.Errorf("%s: got %s %s", path, out.State, out.Result.Value)
		}
	}
	if got := success(t, execute(t, o, `{"path":"/proc/version"}`)); !strings.HasPrefix(got.Stdout, "Linux") {
		t.Errorf("/proc/version: got %q", got.Stdout)
	}
	for _, value := range []string{"self/maps", fmt.Sprintf("%d/environ", child.Process.Pid)} {
		o.Params[0].Root = "/proc"
		params, _ := json.Marshal(map[string]string{"path": value})
		if out := execute(t, o, string(params)); out.State == ops.Succeeded {
			t.Errorf("%s below /proc: got %s", value, out.Result.Value)
		}
	}
}

// A root that holds the gateway's own folder does not open that, by no name.
func TestPathsOfTheGateway(t *testing.T) {
	root := quarry(t)
	if err := os.Symlink("a", root+"/other"); err != nil {
		t.Fatal(err)
	}
	o := pathOp(t, root)
	config := testConfig
	config.Closed = []string{root + "/a"}
	e, err := New(o, config)
	if err != nil {
		t.Fatal(err)
	}
	for value, closed := range map[string]bool{"a/b": true, "other/b": true, "in": true, root + "/a/b": true, "file": false} {
		params, err := json.Marshal(map[string]string{"path": value})
		if err != nil {
			t.Fatal(err)
		}
		out, err := e.Execute(t.Context(), ops.Call{Op: o.Name, Params: params})
		switch {
		case err != nil:
			t.Fatal(err)
		case closed:
			if f := failure(t, out, ops.Failed, ops.InvalidParams); !strings.Contains(f.Message, "belongs to the gateway") {
				t.Errorf("%s: got %v", value, f)
			}
		default:
			success(t, out)
		}
	}
}
