package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inband/ops"
)

// Cases about what box.exec and op names admit: exactly what is listed, byte for byte,
// at every entrance.
func TestOnlyWhatIsListed(t *testing.T) {
	l := newSite(t, `provider: test
title: Names
ops:
  ls: {summary: One op., side_effecting: false, argv: [/usr/bin/echo, listed]}
`, everything)
	sentinel := l.file("sentinel")
	box := func(t *testing.T, want ops.Code, action string, arg ...string) {
		t.Helper()
		params := map[string]string{"action": action}
		if len(arg) > 0 {
			params["arg"] = arg[0]
		}
		b, err := json.Marshal(params)
		if err != nil {
			t.Fatal(err)
		}
		l.in(t).everywhere(l.scout, "box.exec", string(b), want)
	}
	t.Run("x27", func(t *testing.T) {
		box(t, ops.InvalidParams, "status | id")
		box(t, ops.InvalidParams, "status", "| id")
		box(t, ops.InvalidParams, "agent", "x | id")
		box(t, ops.BadRequest, "status", "scout")
		for text, want := range map[string]ops.Code{
			"```box\nstatus | id\n```":  ops.InvalidParams,
			"```box\nagent x | id\n```": ops.InvalidParams,
			"```box\nagent scout\n```":  "",
		} {
			if got := l.in(t).inReply(l.scout, text); got != want {
				t.Errorf("%q: got %q, want %q", text, got, want)
			}
		}
	})
	t.Run("x28", func(t *testing.T) {
		for _, form := range []string{"uptime && rm %s", "uptime;rm %s", "uptime > %s", "uptime\nrm %s", "uptime & rm %s", "uptime || rm %s", "$(rm %s)", "`rm %s`"} {
			box(t, ops.InvalidParams, fmt.Sprintf(form, sentinel))
		}
	})
	t.Run("x31", func(t *testing.T) {
		var actions []string
		for _, action := range l.actions() {
			if slices.Contains(ops.ReadsOfOne, action) {
				actions = append(actions, action)
			}
		}
		if len(actions) < 4 {
			t.Fatalf("actions with an argument: %v", actions)
		}
		for i, arg := range []string{"--output=" + sentinel + ".pwn", "-o" + sentinel + ".pwn", "--help", "--version", "-", "--", "@/etc/shadow", "-exec", "--files0-from=/etc/shadow", "-f/etc/shadow", "../x", " x", ""} {
			if i == 0 {
				for _, action := range actions {
					box(t, ops.InvalidParams, action, arg)
				}
				continue
			}
			if i%3 == 0 {
				box(t, ops.InvalidParams, actions[i%len(actions)], arg)
			}
			for _, action := range actions {
				status, a := l.in(t).ask(l.scout, http.MethodPost, "/exec", map[string]any{"op": "box.exec", "params": map[string]string{"action": action, "arg": arg}})
				if status != http.StatusBadRequest || a.Code != ops.InvalidParams {
					t.Errorf("%s %q: status %d %s", action, arg, status, a.Code)
				}
			}
		}
	})
	t.Run("x35", func(t *testing.T) {
		for _, action := range []string{"uptim", "uptimes", "xuptime", "UPTIME", "Uptime", " uptime", "uptime ", "./uptime", "/usr/bin/uptime", "uptime\u200b", "upt\u0456me", "uptime\ufeff"} {
			box(t, ops.InvalidParams, action)
		}
		// Ops too: what is no op name is no order in a reply, so this goes where it can.
		for _, name := range []string{"lsblk", "xls", "ls2", "LS", " ls", "ls ", "./ls", "/tmp/ls", "ls\u200b", "l\u0455", "l"} {
			if status, a := l.in(t).ask(l.scout, http.MethodPost, "/exec", map[string]any{"op": name}); status != http.StatusNotFound || a.Code != ops.UnknownOp {
				t.Errorf("op %q: status %d %s, want 404 UNKNOWN_OP", name, status, a.Code)
			}
			if _, _, code := l.run(l.scout, "", "exec", name); code != ops.ExitNotFound {
				t.Errorf("box exec %q: exit code %d, want %d", name, code, ops.ExitNotFound)
			}
		}
		for _, name := range []string{"lsblk", "xls", "ls2", "LS"} {
			l.in(t).everywhere(l.scout, name, `{}`, ops.UnknownOp)
		}
		l.in(t).everywhere(l.scout, "ls", `{}`, "")
	})
	t.Run("x38", func(t *testing.T) {
		box(t, ops.InvalidParams, "")
		l.in(t).everywhere(l.scout, "box.exec", `{}`, ops.InvalidParams)
		l.in(t).everywhere(l.scout, "box.exec", `{"cmd":""}`, ops.InvalidParams)
		if status, a := l.in(t).ask(l.scout, http.MethodPost, "/exec", map[string]any{"op": ""}); status/100 != 4 {
			t.Errorf("an op without a name: status %d %s", status, a.Code)
		}
		for _, text := range []string{"```box\n```", "```box\n\n```", "[EXEC ]", "[TOOL  {}]", "```tool\n```"} {
			status, a := l.in(t).ask(l.scout, http.MethodPost, "/v1/replies", map[string]string{"room": "lobby", "message": fmt.Sprint("none-", replies.Add(1)), "text": text})
			if status != http.StatusOK || len(a.Calls) != 0 {
				t.Errorf("%q: status %d, %d calls", text, status, len(a.Calls))
			}
		}
	})
	if _, err := os.Stat(sentinel); err != nil {
		t.Error(err)
	}
	if files := tree(t, l.dir); len(files) != 2 {
		t.Errorf("there is more than the sentinel: %v", files)
	}
}

// actions are those of box.exec.
func (l *lab) actions() []string {
	l.t.Helper()
	var op struct {
		Parameters struct {
			Properties map[string]struct{ Enum []string }
		}
	}
	if err := l.get("/v1/ops/box.exec", &op); err != nil {
		l.t.Fatal(err)
	}
	return op.Parameters.Properties["action"].Enum
}

// Case x37: where the gateway is started, and what its PATH says, decides nothing.
func TestPathIsNotSearched(t *testing.T) {
	box, cwd := build(t, ""), t.TempDir()
	state := filepath.Join(cwd, "state")
	if out, err := exec.Command(box, "--state", state, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	for _, name := range []string{"uptime", "cat", "sh", "df"} {
		if err := os.WriteFile(filepath.Join(cwd, name), []byte("#!/bin/sh\necho planted; touch "+cwd+"/ran\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(box, "--state", state, "serve", "--listen", "127.0.0.1:0")
	cmd.Dir, cmd.Env = cwd, []string{"HOME=" + cwd, "PATH=" + filepath.Join(cwd, "uptime") + "::.:" + cwd}
	l := &lab{t: t, box: box, gateway: start(t, cmd, state)}
	if l.isDead() {
		t.Fatalf("the gateway does not start:\n%s", l.log)
	}
	for _, words := range [][]string{{"exec", "uptime"}, {"exec", "box.exec", "action=uptime"}, {"exec", "load"}} {
		if out, errs, code := l.run(l.token, "", words...); code != 0 || strings.Contains(out, "planted") {
			t.Errorf("%v: exit code %d, %q, %q", words, code, out, errs)
		}
	}
	for _, argv := range []string{"[uptime]", "[./uptime]", `[""]`, "[.]", "[..]", "[../uptime]", "[]", "[/]", "[/usr/bin/../bin/uptime]"} {
		file := filepath.Join(t.TempDir(), "f.yaml")
		writeFile(t, file, "provider: t\nops:\n  t.op: {summary: a, side_effecting: false, argv: "+argv+"}\n")
		if _, errs, code := l.run(l.token, "", "ops", "check", file); code != ops.ExitUsage || !strings.Contains(errs, file+":3: ") {
			t.Errorf("argv %s: exit code %d, %q", argv, code, errs)
		}
	}
	if _, err := os.Stat(filepath.Join(cwd, "ran")); err == nil {
		t.Error("a planted program ran")
	}
}
