package tests

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"inband/ops"
)

// badFile is an op file that must not load.
type badFile struct {
	name, text string
	line       int
	says       string
	mode       fs.FileMode
}

func badFiles() []badFile {
	op := func(lines ...string) string {
		return "provider: bad\nops:\n  bad.op:\n    summary: S.\n    side_effecting: false\n    argv: [/usr/bin/true]\n    " + strings.Join(lines, "\n    ") + "\n"
	}
	bomb := "provider: bad\na: &a [x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'j'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", c-1), 8), ", "))
	}
	return []badFile{
		// Case x24: nothing means "no timeout".
		{"timeout 0", op("timeout: 0"), 7, "timeout", 0},
		{"timeout -1", op("timeout: -1"), 7, "timeout", 0},
		{"timeout quoted 0", op(`timeout: "0"`), 7, "timeout", 0},
		{"timeout 0s", op("timeout: 0s"), 7, "timeout", 0},
		{"timeout negative", op("timeout: -5s"), 7, "timeout", 0},
		{"timeout 1e12", op("timeout: 1e12"), 7, "decimal", 0},
		{"timeout above", op("timeout: 1000h"), 7, "10m0s", 0},
		{"timeout null", op("timeout: null"), 7, "timeout", 0},
		{"timeout none", op("timeout: none"), 7, "timeout", 0},
		// Case x64, and the bad input of op files.
		{"permissions", op("permissions: []"), 7, "unknown key", 0},
		{"unknown key", op("shell: true"), 7, "unknown key", 0},
		{"repeated key", op("timeout: 1s", "timeout: 2s"), 8, "already", 0},
		{"case variant", op("Argv: [/usr/bin/id]"), 7, "write argv", 0},
		{"repeated op", op() + strings.SplitN(op(), "ops:\n", 2)[1], 8, "already", 0},
		{"taken op", strings.Replace(op(), "bad.op", "test.good", 1), 0, "taken at bad.yaml:3", 0},
		{"native op", strings.Replace(op(), "bad.op", "tools.list", 1), 3, "taken", 0},
		{"anchor bomb", bomb, 1, "anchor", 0},
		{"merge", op("output: {<<: {max: 1KiB}}"), 7, "merge", 0},
		{"second document", op() + "---\n" + op(), 9, "document", 0},
		{"tab", "provider: bad\nops:\n\tbad.op: {}\n", 3, "tab", 0},
		{"NUL", op("timeout: 1s # \x00"), 7, "control character", 0},
		{"invalid UTF-8", op("timeout: 1s # \xff"), 7, "UTF-8", 0},
		{"10 MB", op() + strings.Repeat("# comment\n", 1<<20), 1, "longer than", 0},
		{"half-written", op()[:70], 0, "", 0},
		{"empty", "", 1, "empty", 0},
		{"garbage", "\x7fELF\x02\x01\x01\x00", 1, "", 0},
		{"world-writable", op(), 1, "anybody may write", 0o666},
		// Case x55: no profile means no op, never no sandbox.
		{"empty sandbox", op(`sandbox: ""`), 7, "sandbox", 0},
		{"unknown sandbox", op("sandbox: no-such-profile"), 7, "sandbox", 0},
		{"sandbox with a name only", op("sandbox: {name: strict}"), 7, "unknown key", 0},
		{"unknown layer", op("sandbox: {require: [selinux]}"), 7, "selinux", 0},
		// Case x53: lists say what is open, and nothing else does.
		{"network as a list", op("network: []"), 7, "network", 0},
		{"network null", op("network: null"), 7, "network", 0},
	}
}

// problem is a line of what is wrong with op files.
var problem = regexp.MustCompile(`(?:bad|test)\.yaml:[0-9]+: [^\n"]*`)

// Cases x24, x55 and x64, and the bad input of op files: the check, the reload and the
// start find the same in a bad file, with its line, and what is in force stays so.
func TestBadOpFiles(t *testing.T) {
	l := newSite(t, `provider: test
title: Good
ops:
  test.good: {summary: Good., side_effecting: false, argv: [/usr/bin/echo, good]}
`, "")
	folder := filepath.Join(l.state, "ops.d")
	elsewhere := filepath.Join(t.TempDir(), "state")
	if _, errs, code := l.run(l.token, "", "--state", elsewhere, "init"); code != 0 {
		t.Fatal(errs)
	}
	good, err := os.ReadFile(filepath.Join(folder, "test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(elsewhere, "ops.d", "test.yaml"), string(good))
	var before, after struct {
		Ops []struct{ Name, Digest string }
	}
	if err := l.get("/v1/ops", &before); err != nil {
		t.Fatal(err)
	}
	for _, bad := range badFiles() {
		paths := []string{filepath.Join(folder, "bad.yaml"), filepath.Join(elsewhere, "ops.d", "bad.yaml")}
		for _, path := range paths {
			writeFile(t, path, bad.text)
			if bad.mode != 0 {
				if err := os.Chmod(path, bad.mode); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, checked, code := l.run(l.token, "", "ops", "check", folder)
		want := problem.FindAllString(checked, -1)
		if code != ops.ExitUsage || len(want) == 0 || bad.line > 0 && !strings.HasPrefix(want[0], fmt.Sprintf("bad.yaml:%d: ", bad.line)) || !strings.Contains(checked, bad.says) {
			t.Errorf("%s: box ops check ends with %d and says %q, want line %d and %q", bad.name, code, checked, bad.line, bad.says)
		}
		var refused struct {
			Code    ops.Code
			Details struct{ Problems []string }
		}
		err := l.do(http.MethodPost, "/v1/ops/reload", nil, &refused)
		if got := problem.FindAllString(strings.Join(refused.Details.Problems, "\n"), -1); err == nil || refused.Code != ops.Conflict || !slices.Equal(got, want) {
			t.Errorf("%s: the reload says %s %q, and the check %q", bad.name, refused.Code, got, want)
		}
		_, started, code := l.run(l.token, "", "--state", elsewhere, "serve", "--listen", "127.0.0.1:0")
		if got := problem.FindAllString(started, -1); code != ops.ExitUsage || !slices.Equal(got, want) {
			t.Errorf("%s: a start ends with %d and says %q, and the check %q", bad.name, code, got, want)
		}
		if err := l.get("/v1/ops", &after); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: the ops in force are others (%v)", bad.name, err)
		}
		for _, path := range paths {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A folder that is gone is no empty one. (Removing one file is how its ops are
	// removed: TestReloadUnderLoad.)
	if err := os.Rename(folder, folder+".gone"); err != nil {
		t.Fatal(err)
	}
	if status, a := l.ask(l.token, http.MethodPost, "/v1/ops/reload", nil); status/100 == 2 {
		t.Errorf("a reload without the folder: status %d %s", status, a.Code)
	}
	if err := l.get("/v1/ops", &after); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("without the folder the ops in force are others (%v)", err)
	}
	if err := os.Rename(folder+".gone", folder); err != nil {
		t.Fatal(err)
	}
	// No timeout is the default one.
	l.everywhere(l.scout, "test.good", `{}`, "")
	file, err := ops.ReadFile("f.yaml", good)
	if err != nil || file.Ops[0].Timeout != ops.DefaultTimeout {
		t.Errorf("an op without a timeout has %v (%v)", file.Ops[0].Timeout, err)
	}
	if status, a := l.ask(l.token, http.MethodPost, "/v1/ops/reload", nil); status != http.StatusOK {
		t.Errorf("a reload of good files: status %d %s", status, a.Code)
	}
}

// Case x64: an op that no policy permits is nobody's, the operators included.
func TestOpWithoutPermission(t *testing.T) {
	l := twoOpsSite(t, `permit (principal is Operator, action in [Action::"manage", Action::"see", Action::"output"], resource);
permit (principal, action == Action::"reply", resource) when { context.own };
permit (principal is Agent, action in [Action::"see", Action::"output"], resource) when { context.own };
permit (principal, action == Action::"run", resource == Op::"test.up");
permit (principal is Operator, action == Action::"run", resource == Op::"dm.send");
`)
	l.everywhere(l.scout, "test.down", `{}`, ops.NotPermitted)
	if status, a := l.ask(l.token, http.MethodPost, "/exec", map[string]any{"op": "test.down"}); status != http.StatusForbidden || a.Code != ops.NotPermitted {
		t.Errorf("the operator: status %d %s", status, a.Code)
	}
	l.everywhere(l.scout, "test.up", `{}`, "")
	if slices.Contains(l.runs(), "down") {
		t.Error("it ran")
	}
}

// Case x29: no shipped op lets its caller choose a program, and a program that can run
// others takes no word of a caller.
func TestProgramsThatRunOthers(t *testing.T) {
	files, err := ops.ReadDir(ops.Files)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for _, op := range f.Ops {
			if why := ops.Dispatches(op.Command.Argv, op.Params); why != "" {
				t.Errorf("%s:%d: op %s: %s", op.File, op.Line, op.Name, why)
			}
		}
	}
	for _, argv := range []string{
		"[/usr/bin/env, --, {param: v}]", "[/usr/bin/env, -i, --, {param: v}]", "[/usr/bin/xargs, --, {param: v}]", "[/usr/bin/timeout, --, '5', {param: v}]",
		"[/usr/bin/nice, --, {param: v}]", "[/usr/bin/nohup, --, {param: v}]", "[/usr/bin/stdbuf, -o0, --, {param: v}]", "[/usr/bin/systemd-run, --, {param: v}]",
		"[/usr/bin/ssh, host, --, {param: v}]", "[/usr/bin/less, --, {param: v}]", "[/usr/bin/man, --, {param: v}]", "[/usr/bin/awk, --, {param: v}]",
		"[/usr/bin/sed, --, {param: v}]", "[/usr/bin/vim, --, {param: v}]", "[/usr/bin/perl, --, {param: v}]", "[/usr/bin/python3, --, {param: v}]",
		"[/usr/bin/find, /srv, -exec, --, {param: v}, ;]", "[/usr/bin/find, /srv, -execdir, --, {param: v}, ;]", "[/usr/bin/ip, netns, exec, --, {param: v}]",
		"[/usr/bin/tar, --to-command, --, {param: v}]", "[/usr/bin/tar, --checkpoint-action=exec=sh, --, {param: v}]", "[/usr/bin/sudo, --, {param: v}]",
		"[/usr/bin/busybox, --, {param: v}]", "[/usr/bin/setpriv, --, {param: v}]",
	} {
		text := "provider: t\nops:\n  t.op:\n    summary: S.\n    side_effecting: false\n    params: {v: {type: pattern, pattern: '[a-z]+', max: 9}}\n    argv: " + argv + "\n"
		if _, err := ops.ReadFile("f.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "f.yaml:7: ") {
			t.Errorf("%s: got %v, want an error at line 7", argv, err)
		}
		pinned := strings.Replace(strings.Replace(text, "    params: {v: {type: pattern, pattern: '[a-z]+', max: 9}}\n", "", 1), "{param: v}", "fixed", 1)
		if _, err := ops.ReadFile("f.yaml", []byte(pinned)); err != nil {
			t.Errorf("%s with every word fixed: %v", argv, err)
		}
	}
}
