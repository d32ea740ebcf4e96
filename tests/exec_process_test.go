package tests

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"inband/ops"
	"inband/service/journal/storetest"
)

// What starts, with which words, and what it can reach.

// Case x01: whatever an operator's pattern lets through is one word of one program, and
// that program is all that is executed.
func TestOneProgramAndNoShell(t *testing.T) {
	l := newSite(t, `provider: test
title: A pattern that lets too much through
ops:
  test.echo:
    summary: Print a word.
    side_effecting: false
    params: {v: {type: pattern, pattern: '[a-z;$()`+"`"+`|&<> ]+', max: 99}}
    argv: [/bin/echo, --, {param: v}]
    end_of_options: unsupported because echo knows no options but its own
`, "")
	started := executions(t, l.cmd.Process.Pid)
	for _, v := range []string{"a;id $(id) `id`", "a && id", "a | sh", "a > b"} {
		params, err := json.Marshal(map[string]string{"v": v})
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Result struct{ Stdout string } }
		if err := l.as(l.scout, "POST", "/exec", map[string]any{"op": "test.echo", "params": json.RawMessage(params)}, &answer); err != nil || answer.Result.Stdout != "-- "+v+"\n" {
			t.Errorf("%q: got %q, %v", v, answer.Result.Stdout, err)
		}
		if n := started(); n != 1 {
			t.Errorf("%q: %d programs were executed below the gateway, want one", v, n)
		}
	}
}

// executions watches what is executed in the processes below pid. What it returns gives
// their number since it was asked last.
func executions(t *testing.T, pid int) func() int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_CONNECTOR)
	storetest.Need(t, "the kernel's process events", err)
	t.Cleanup(func() { unix.Close(fd) })
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	storetest.Need(t, "the kernel's process events", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})) // CN_IDX_PROC
	// struct nlmsghdr, struct cn_msg, and PROC_CN_MCAST_LISTEN.
	m := binary.NativeEndian.AppendUint32(nil, 16+20+4)
	m = binary.NativeEndian.AppendUint16(m, unix.NLMSG_DONE)
	m = append(m, make([]byte, 2+4+4)...)
	for _, word := range []uint32{1, 1, 0, 0} { // CN_IDX_PROC, CN_VAL_PROC, seq, ack
		m = binary.NativeEndian.AppendUint32(m, word)
	}
	m = binary.NativeEndian.AppendUint16(m, 4)
	m = binary.NativeEndian.AppendUint16(m, 0)
	m = binary.NativeEndian.AppendUint32(m, 1)
	storetest.Need(t, "the kernel's process events", unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))

	below := map[uint32]bool{uint32(pid): true}
	return func() (n int) {
		t.Helper()
		for buf := make([]byte, 4096); ; {
			size, _, err := unix.Recvfrom(fd, buf, 0)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return n
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil:
				t.Fatalf("process events: %v", err)
			case size < 16+20+16+16:
				continue
			}
			// struct proc_event: what, cpu, timestamp, then the pids of each kind.
			e := buf[16+20 : size]
			word := func(i int) uint32 { return binary.NativeEndian.Uint32(e[16+4*i:]) }
			switch binary.NativeEndian.Uint32(e) {
			case 1: // fork: parent's pid and tgid, child's pid and tgid
				if below[word(1)] {
					below[word(3)] = true
				}
			case 2: // exec: pid and tgid
				if below[word(1)] {
					n++
				}
			}
		}
	}
}

// Cases x33 and x34: a value names one thing below its root, byte for byte, however a
// shell would have read it, and never becomes two words.
func TestPathsAreLiteral(t *testing.T) {
	l := newSiteWith(t, `provider: test
title: Files
ops:
  test.stdin:
    summary: Print a log.
    side_effecting: false
    params: {p: {type: path, root: DIR/log, kind: file}}
    argv: [/bin/cat]
  test.word:
    summary: Show which words a program gets.
    side_effecting: false
    params: {p: {type: path, root: DIR/log, kind: file, as: argument}}
    argv: [PROGRAM, act, show, --, {param: p}]
    fs: {read: [DIR/log]}
`, "", func(l *lab) {
		l.closeFolder()
		for _, name := range []string{"a", "b", "syslog", "{x,y}", "$(id)", "with blank"} {
			writeFile(t, filepath.Join(l.dir, "log", name), "the file "+name)
			if err := os.Chmod(filepath.Join(l.dir, "log", name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("/etc/passwd", filepath.Join(l.dir, "log", "out")); err != nil {
			t.Fatal(err)
		}
	})
	for value, want := range map[string]ops.Code{
		"*":                         ops.NotFound,
		"?":                         ops.NotFound,
		"[ab]":                      ops.NotFound,
		"{a,b}":                     ops.NotFound,
		"a b":                       ops.NotFound,
		"$HOME/.ssh/id_rsa":         ops.NotFound,
		"~root/.bashrc":             ops.NotFound,
		"~":                         ops.NotFound,
		"$(id -u)":                  ops.NotFound,
		"`id`":                      ops.NotFound,
		"a;id":                      ops.NotFound,
		"syslog /etc/shadow":        ops.NotFound,
		"syslog\t/etc/shadow":       ops.InvalidParams,
		"syslog\n/etc/shadow":       ops.InvalidParams,
		"../../etc/shadow":          ops.InvalidParams,
		"syslog/../../../etc/passw": ops.InvalidParams,
		"/etc/shadow":               ops.InvalidParams,
		"-":                         ops.InvalidParams,
		"a":                         "",
		"./a":                       "",
		"{x,y}":                     "",
		"$(id)":                     "",
		"with blank":                "",
	} {
		params, err := json.Marshal(map[string]string{"p": value})
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range []string{"test.stdin", "test.word"} {
			if _, a := l.ask(l.scout, "POST", "/exec", map[string]any{"op": op, "params": json.RawMessage(params)}); a.Code != want {
				t.Errorf("%s %s: got %q, want %q", op, params, a.Code, want)
			}
		}
		if value == "*" || value == "/etc/shadow" || value == "$(id)" {
			l.everywhere(l.scout, "test.word", string(params), want)
		}
		if want != "" {
			continue
		}
		name := strings.TrimPrefix(value, "./")
		if out, _, _ := l.run(l.scout, string(params), "exec", "test.stdin", "-f", "-"); strings.TrimSpace(out) != "the file "+name {
			t.Errorf("%q is the file %q", value, out)
		}
		var s seen
		out, _, _ := l.run(l.scout, string(params), "exec", "test.word", "-f", "-")
		if err := json.Unmarshal([]byte(out), &s); err != nil || !slices.Equal(s.Args, []string{"--", filepath.Join(l.dir, "log", name)}) {
			t.Errorf("%q became the words %q (%v)", value, s.Args, err)
		}
	}
	for _, op := range []string{"test.stdin", "test.word"} {
		if status, a := l.ask(l.scout, "POST", "/exec", map[string]any{"op": op, "params": map[string]string{"p": "out"}}); status/100 == 2 {
			t.Errorf("%s of a link that leads out: status %d %s", op, status, a.Code)
		}
	}
}

// Case x39: a revision is no option of git, and the op file has to say so.
func TestRevisionsAreNoOptions(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/git"); err != nil {
		storetest.Need(t, "/usr/bin/git", err)
	}
	l := newSiteWith(t, `provider: test
title: A repository
ops:
  test.show:
    summary: Show a revision.
    side_effecting: false
    params: {ref: {type: pattern, pattern: '[A-Za-z0-9/=_-]+', max: 99}}
    argv: [/usr/bin/git, -C, DIR/repo, -c, 'safe.directory=*', --no-pager, show, --no-patch, --format=%s, --end-of-options, {param: ref}]
    fs: {read: [DIR/repo, /etc/gitconfig, /root, /nonexistent], exec: [/usr/lib/git-core]}
`, "", func(l *lab) {
		l.closeFolder()
		repo := filepath.Join(l.dir, "repo")
		for _, words := range [][]string{{"init", "-q", repo}, {"-C", repo, "commit", "-q", "--allow-empty", "-m", "the commit"}, {"-C", repo, "branch", "feature/-x"}} {
			cmd := exec.Command("/usr/bin/git", words...)
			cmd.Env = []string{"HOME=" + t.TempDir(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("git %v: %v\n%s", words, err, out)
			}
		}
	})
	pwn := filepath.Join(l.dir, "pwn")
	for _, ref := range []string{"--output=" + pwn, "-O" + pwn, "--upload-pack=id", "-", "--", "--help"} {
		params, err := json.Marshal(map[string]string{"ref": ref})
		if err != nil {
			t.Fatal(err)
		}
		l.everywhere(l.scout, "test.show", string(params), ops.InvalidParams)
	}
	for _, ref := range []string{"HEAD", "feature/-x"} {
		if out, errs, code := l.run(l.scout, "", "exec", "test.show", "ref="+ref); code != 0 || strings.TrimSpace(out) != "the commit" {
			t.Errorf("%s: exit code %d, %q, %q", ref, code, out, errs)
		}
	}
	if _, err := os.Lstat(pwn); err == nil {
		t.Error("git wrote a file")
	}
	file := filepath.Join(t.TempDir(), "f.yaml")
	writeFile(t, file, "provider: t\nops:\n  t.op:\n    summary: S.\n    side_effecting: false\n    params: {ref: {type: pattern, pattern: '[a-z]+', max: 9}}\n    argv: [/usr/bin/git, show, {param: ref}]\n")
	if _, errs, code := l.run(l.token, "", "ops", "check", file); code != ops.ExitUsage || !strings.Contains(errs, file+":7: ") || !strings.Contains(errs, "end of options") {
		t.Errorf("git show without an end of options: exit code %d, %q", code, errs)
	}
}

// Case x40: what goes to a standard input is one value, as it is; two are never joined.
func TestStandardInputIsOneValue(t *testing.T) {
	l := newSite(t, `provider: test
title: Standard input
ops:
  test.text:
    summary: Show what comes in.
    side_effecting: false
    params: {v: {type: text, max: 99}}
    argv: [PROGRAM, act, show]
  test.name:
    summary: Show a word.
    side_effecting: false
    params: {v: {type: pattern, pattern: '[^.]*', max: 99}}
    argv: [PROGRAM, act, show, --, {param: v}]
`, "")
	const value = `a\n-execute\n-o\n/tmp/pwn`
	l.everywhere(l.scout, "test.name", `{"v":"`+value+`"}`, ops.InvalidParams)
	l.everywhere(l.scout, "test.text", `{"v":"a\u0000b"}`, ops.InvalidParams)
	l.everywhere(l.scout, "test.text", `{"v":"a\u0085b"}`, ops.InvalidParams)
	out, errs, code := l.run(l.scout, `{"v":"`+value+`"}`, "exec", "test.text", "-f", "-")
	var s seen
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 || s.Stdin != "a\n-execute\n-o\n/tmp/pwn" || len(s.Args) > 0 {
		t.Errorf("exit code %d, %v, %q, the program got %+v", code, err, errs, s)
	}
	for _, params := range []string{
		"{a: {type: text, max: 9}, b: {type: text, max: 9}}",
		"{a: {type: text, max: 9}, b: {type: secret, credentials: ['file:key']}}",
		"{a: {type: path, root: /srv, kind: file}, b: {type: text, max: 9}}",
	} {
		file := filepath.Join(t.TempDir(), "f.yaml")
		writeFile(t, file, "provider: t\nops:\n  t.op:\n    summary: S.\n    side_effecting: false\n    params: "+params+"\n    argv: [/usr/bin/cat]\n")
		if _, errs, code := l.run(l.token, "", "ops", "check", file); code != ops.ExitUsage || !strings.Contains(errs, "f.yaml:6: ") {
			t.Errorf("%s: exit code %d, %q", params, code, errs)
		}
	}
}

// Case x53: a list that is empty opens as little as one that is absent.
func TestEmptyAndAbsentAreNone(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	dir := openFolder(t)
	socket := filepath.Join(dir, "s")
	local, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	reach := "argv: [PROGRAM, act, reach, '" + tcp.Addr().String() + "', " + socket + "]"
	policies := map[string]string{
		"test.absent": "side_effecting: false",
		"test.none":   "side_effecting: false, network: none",
		"test.empty":  "side_effecting: false, fs: {read: [], write: [], exec: []}, network: none",
		"test.reads":  "side_effecting: false, fs: {read: []}",
		"test.execs":  "side_effecting: false, fs: {exec: []}",
		"test.writes": "side_effecting: true, fs: {write: []}",
		"test.acts":   "side_effecting: true, network: none, fs: {read: []}",
		"test.local":  "side_effecting: true, network: unix, fs: {read: [/etc/passwd, " + dir + "], write: [" + dir + "]}",
		"test.open":   "side_effecting: true, network: any, fs: {read: [/etc/passwd, " + dir + "], write: [" + dir + "]}",
	}
	file := "provider: test\ntitle: What is reached\nops:\n"
	for name, policy := range policies {
		file += "  " + name + ": {summary: Try to get out., " + policy + ", " + reach + "}\n"
	}
	l := newSite(t, file, everything)
	said, _, _ := l.run(l.token, "", "ops", "show", "test.empty")
	absent, _, _ := l.run(l.token, "", "ops", "show", "test.absent")
	for _, want := range []string{"reads     nothing but", "writes    nothing but", "executes  no other program", "network   none"} {
		if !strings.Contains(said, want) || !strings.Contains(absent, want) {
			t.Errorf("box ops show does not say %q of an empty list, or not of an absent one:\n%s\n%s", want, said, absent)
		}
	}
	for name := range policies {
		var answer struct{ Result struct{ Stdout string } }
		if err := l.as(l.scout, "POST", "/exec", map[string]any{"op": name}, &answer); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines := strings.Split(strings.TrimSpace(answer.Result.Stdout), "\n")
		if len(lines) != 4 {
			t.Errorf("%s: tried %q", name, lines)
		}
		for _, line := range lines {
			what, how, _ := strings.Cut(line, " ")
			granted := what == "file" && (name == "test.open" || name == "test.local") || what == "unix" && name == "test.local" ||
				(what == "tcp" || what == "udp") && name == "test.open"
			if (how == "done") != granted {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

// Case x36: a program that can start others starts none that its op does not name.
func TestProgramsStartNoOthers(t *testing.T) {
	l := newSiteWith(t, `provider: test
title: find
ops:
  test.find: {summary: Have find start id., side_effecting: false, argv: [/usr/bin/find, DIR/here, -maxdepth, '0', -exec, /usr/bin/id, ;], fs: {read: [DIR/here, /usr/bin]}}
  test.drop: {summary: Have find start what stands in a folder that it may write to., side_effecting: true, argv: [/usr/bin/find, DIR/here, -maxdepth, '0', -exec, DIR/here/dropped, ;], fs: {write: [DIR/here]}}
  test.named: {summary: Have find start what its op names., side_effecting: false, argv: [/usr/bin/find, DIR/here, -maxdepth, '0', -exec, /usr/bin/id, ;], fs: {read: [DIR/here], exec: [/usr/bin/id]}}
`, everything, func(l *lab) {
		l.closeFolder()
		writeFile(t, filepath.Join(l.dir, "here", "dropped"), "#!/bin/sh\necho uid=dropped\n")
		if err := errors.Join(os.Chmod(filepath.Join(l.dir, "here"), 0o777), os.Chmod(filepath.Join(l.dir, "here", "dropped"), 0o755)); err != nil {
			t.Fatal(err)
		}
	})
	if said, _, _ := l.run(l.token, "", "ops", "show", "test.named"); !strings.Contains(said, "executes  /usr/bin/id\n") {
		t.Errorf("box ops show does not say what it may execute:\n%s", said)
	}
	for op, runs := range map[string]bool{"test.find": false, "test.drop": false, "test.named": true} {
		a := l.send(http.MethodPost, "/exec", `{"op":"`+op+`"}`, bearer(l.scout))
		if started, denied := strings.Contains(string(a.body), "uid="), strings.Contains(string(a.body), "Permission denied"); started != runs || denied == runs {
			t.Errorf("%s: %s", op, a.body)
		}
	}
}
