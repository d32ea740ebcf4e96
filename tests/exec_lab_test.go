package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"inband/ops"
	"inband/service/journal/storetest"
)

// What the tests of exec-cases.json share: a gateway with op files of the test's own,
// the program that its ops run, and every way in.

// program is the test binary in a folder that every user may look into, since the ops
// of a gateway that is root run as another.
func program(t testing.TB) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	folder := filepath.Join(builtFolder(t), "program")
	path := filepath.Join(folder, "act")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(built.dir, 0o755), os.Mkdir(folder, 0o755), os.WriteFile(path, self, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// seen is what a program was given.
type seen struct {
	Args  []string
	Env   []string
	Stdin string
	Dir   string
	Files []string // open descriptors, by number
}

// act is what the test binary does as the program of an op: mode says what.
func act(mode string, args []string) error {
	switch mode {
	case "show", "trace": // print what it was given; trace appends it to a file
		s := seen{Env: os.Environ()}
		out := io.Writer(os.Stdout)
		if mode == "trace" {
			f, err := os.OpenFile(args[0], os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			out, args = f, args[1:]
		}
		s.Args = args
		b, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		s.Stdin = string(b)
		if s.Dir, err = os.Getwd(); err != nil {
			return err
		}
		line, err := json.Marshal(s)
		if err != nil {
			return err
		}
		_, err = out.Write(append(line, '\n'))
		return err
	case "print": // print a word after its escapes are read as in Go
		s, err := strconv.Unquote(`"` + strings.ReplaceAll(args[0], `"`, `\"`) + `"`)
		if err != nil {
			return err
		}
		_, err = os.Stdout.WriteString(s)
		return err
	case "blab": // print the standard input, and fail over it
		b, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		fmt.Printf("got %s\n", b)
		return fmt.Errorf("cannot log in with %s", b)
	case "tell": // print what stands in a file, and append it to another
		b, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		f, err := os.OpenFile(args[1], os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.MultiWriter(os.Stdout, f).Write(append(b, '\n'))
		return err
	case "reach": // try what no policy opens by itself
		for what, try := range map[string]func() error{
			"tcp": func() error { return closing(net.Dial("tcp", args[0])) },
			"udp": func() error {
				c, err := net.Dial("udp", args[0])
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.Write([]byte("x"))
				return err
			},
			"unix": func() error { return closing(net.Dial("unix", args[1])) },
			"file": func() error { return closing(os.Open("/etc/passwd")) },
		} {
			var errno syscall.Errno
			switch err := try(); {
			case err == nil:
				fmt.Println(what, "done")
			case errors.As(err, &errno):
				fmt.Println(what, unix.ErrnoName(errno))
			default:
				fmt.Println(what, err)
			}
		}
		return nil
	}
	return fmt.Errorf("no mode %q", mode)
}

func closing(c io.Closer, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}

// newSite returns a gateway with the op file text, in which PROGRAM stands for the
// tests' program and DIR for a folder that anybody may write to, and with the policy,
// the default one if it is empty.
func newSite(t *testing.T, file, policy string) *lab {
	t.Helper()
	return newSiteWith(t, file, policy, nil)
}

// newSiteWith is newSite with more to prepare before the gateway starts.
func newSiteWith(t *testing.T, file, policy string, prepare func(*lab)) *lab {
	t.Helper()
	l := &lab{t: t, box: build(t, ""), dir: openFolder(t)}
	state := filepath.Join(t.TempDir(), "state")
	if out, err := exec.Command(l.box, "--state", state, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	if file != "" {
		if err := os.WriteFile(filepath.Join(state, "ops.d", "test.yaml"), []byte(l.fill(file)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if policy != "" {
		if err := os.WriteFile(filepath.Join(state, "policy.cedar"), []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.gateway = &gateway{state: state}
	if prepare != nil {
		prepare(l)
	}
	// Hundreds of orders of one agent are what these tests are about.
	cmd := exec.Command(l.box, "--state", state, "serve", "--listen", "127.0.0.1:0", "--rate", "10000/m")
	if l.gateway = start(t, cmd, state); l.isDead() {
		t.Fatalf("the gateway does not start:\n%s", l.log)
	}
	l.scout, l.clerk = l.agent(t, "scout"), l.agent(t, "clerk")
	return l
}

// in is l as a subtest uses it.
func (l *lab) in(t *testing.T) *lab {
	sub := *l
	sub.t = t
	return &sub
}

// writeFile writes a file with the folders above it, which its owner alone may use but
// anybody look into.
func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// credential keeps a secret for the ops that refer to it as file:NAME.
func (l *lab) credential(name, value string) {
	l.t.Helper()
	path := filepath.Join(l.state, "credentials", name)
	writeFile(l.t, path, value)
	if err := os.Chmod(filepath.Dir(path), 0o700); err != nil {
		l.t.Fatal(err)
	}
}

// openFolder is a new folder that every user may reach and write to.
func openFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "inband-case-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// closeFolder keeps others from writing to DIR, for op files that name what is in it: an
// op whose paths anybody can bend does not run.
func (l *lab) closeFolder() {
	l.t.Helper()
	if err := os.Chmod(l.dir, 0o755); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) fill(file string) string {
	return strings.NewReplacer("PROGRAM", program(l.t), "DIR", l.dir).Replace(file)
}

// file makes an empty file in the lab's folder that anybody may write to.
func (l *lab) file(name string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	if err := errors.Join(os.WriteFile(path, nil, 0o666), os.Chmod(path, 0o666)); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// everything lets everybody do everything, so that only what an op and its parameters
// are decides.
const everything = `permit (principal, action, resource);
`

// head is the number of events so far, as the signed log counts them.
func (l *lab) head() int64 {
	l.t.Helper()
	var status struct{ Position int64 }
	if err := l.get("/v1/status", &status); err != nil {
		l.t.Fatal(err)
	}
	return status.Position
}

// run is box with words, as the identity of a token.
func (l *lab) run(token, stdin string, words ...string) (stdout, stderr string, code int) {
	l.t.Helper()
	cmd := l.command(token, words...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		l.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (l *lab) command(token string, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(l.t.Context(), l.box, append([]string{"--state", l.state}, words...)...)
	cmd.Env = append(os.Environ(), "INBAND_TOKEN="+token)
	return cmd
}

// openTerminal returns the controlling side of a new terminal, and the name of the other.
func openTerminal(t testing.TB) (*os.File, string) {
	t.Helper()
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	storetest.Need(t, "a terminal", err)
	t.Cleanup(func() { f.Close() })
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return f, fmt.Sprint("/dev/pts/", n)
}

// entrance is one way in: it orders op with params, as JSON, and returns the code that
// the order ends in, "" if it succeeds.
type entrance struct {
	name  string
	order func(op, params string) ops.Code
}

// entrances are all that there are for an agent with a token. Those in text carry the key
// of a wake: of a new one each time if what is ordered is to run, since nobody else may
// have said anything in its thread then.
func (l *lab) entrances(token string, runs bool) []entrance {
	agent := map[string]string{l.scout: "scout", l.clerk: "clerk"}[token]
	inReply := func(form string) func(op, params string) ops.Code {
		return func(op, params string) ops.Code {
			if l.key == "" || runs {
				l.thread, l.key = l.wake(l.t, agent, "Do as you like.")
			}
			text := strings.NewReplacer("OP", op, "PARAMS", params, "KEY", l.key).Replace(form)
			return l.inThread(token, l.thread, text)
		}
	}
	return []entrance{
		{"POST /exec", func(op, params string) ops.Code {
			status, a := l.ask(token, http.MethodPost, "/exec", map[string]any{"op": op, "params": json.RawMessage(params)})
			if status == 0 {
				l.t.Errorf("POST /exec %s %.200s: no answer", op, params)
			}
			return a.Code
		}},
		{"a bracket directive", inReply("[TOOL#KEY OP PARAMS]")},
		{"a tool fence", inReply("```tool\n[TOOL#KEY OP PARAMS]\n```")},
		{"a call object in an exec fence", inReply("```exec\n{\"op\":\"OP\",\"params\":PARAMS,\"key\":\"KEY\"}\n```")},
		{"a curl command", inReply("$ curl -d '{\"op\":\"OP\",\"params\":PARAMS,\"key\":\"KEY\"}' https://localhost/exec\n")},
		{"box exec", func(op, params string) ops.Code {
			out, errs, code := l.run(token, params, "exec", op, "-f", "-", "--json")
			if code == 0 {
				return ""
			}
			var a answer
			if err := json.Unmarshal([]byte(out), &a); err != nil {
				l.t.Errorf("box exec %s %.200s: exit code %d, stdout %.200q, stderr %.200q", op, params, code, out, errs)
			}
			if a.Fault.Code != "" {
				a.Code = a.Fault.Code
			}
			if want := a.Code.Info().Exit; code != want {
				l.t.Errorf("box exec %s %.200s: exit code %d for %s, want %d", op, params, code, a.Code, want)
			}
			return a.Code
		}},
	}
}

var replies atomic.Int64

// inReply hands in a reply with one order and returns the code that it ends in, or that
// the reply is refused with; parked if it waits for an approval.
func (l *lab) inReply(token, text string) ops.Code {
	l.t.Helper()
	return l.handIn(token, map[string]string{"room": "lobby", "text": text})
}

// inThread is inReply in a thread that there is.
func (l *lab) inThread(token, thread, text string) ops.Code {
	l.t.Helper()
	return l.handIn(token, map[string]string{"thread": thread, "text": text})
}

func (l *lab) handIn(token string, reply map[string]string) ops.Code {
	l.t.Helper()
	text := reply["text"]
	reply["message"] = fmt.Sprint("case-", replies.Add(1))
	status, a := l.ask(token, http.MethodPost, "/v1/replies", reply)
	if status != http.StatusOK {
		return a.Code
	}
	if len(a.Calls) != 1 {
		l.t.Errorf("reply %.200q: %d calls, want 1", text, len(a.Calls))
		return "NO_CALL"
	}
	var call answer
	until(l.t, "the call settles", func() bool {
		if status, call = l.ask(token, http.MethodGet, "/v1/calls/"+string(a.Calls[0].Call), nil); status != http.StatusOK {
			l.t.Fatalf("call of %.200q: status %d", text, status)
		}
		return call.State.Settled() || call.State == ops.Parked
	})
	if call.State == ops.Parked {
		return parked
	}
	return call.Fault.Code
}

// everywhere orders op at each entrance and checks the code that it ends in there.
func (l *lab) everywhere(token, op, params string, want ops.Code) {
	l.t.Helper()
	for _, e := range l.entrances(token, want == "" || want == ops.NotFound) {
		if got := e.order(op, params); got != want {
			l.t.Errorf("%s %.120s by %s: got %q, want %q", op, params, e.name, got, want)
		}
	}
}

// traces are what the programs of mode trace were given, by the file that they append to.
func (l *lab) traces(name string) (all []seen) {
	l.t.Helper()
	b, err := os.ReadFile(filepath.Join(l.dir, name))
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var s seen
		if err := json.Unmarshal(line, &s); err != nil {
			l.t.Fatalf("%v in %s", err, line)
		}
		all = append(all, s)
	}
	return all
}

// tree lists the files below a folder, but for those below the folders named.
func tree(t testing.TB, root string, without ...string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if slices.Contains(without, path) {
			return filepath.SkipDir
		}
		if err == nil {
			all = append(all, path)
		}
		return nil // what vanished meanwhile is not ours
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
