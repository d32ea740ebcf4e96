package tests

import (
	"errors"
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

// What was approved is what runs, or nothing does: a real program, its files and its op
// file are changed between the order and the approval. A gateway that is killed meanwhile
// goes on waiting.
func TestApprovedIsWhatRuns(t *testing.T) {
	box, state := build(t, ""), filepath.Join(t.TempDir(), "state")
	if out, err := exec.Command(box, "--state", state, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	// In a folder that every user may look into, since ops run as another where the
	// gateway is root.
	if err := os.Chmod(builtFolder(t), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp(builtFolder(t), "approved")
	if err != nil {
		t.Fatal(err)
	}
	real, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	cat, err := os.ReadFile(real)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, content []byte, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", content, mode), os.Chmod(path+".new", mode), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	bin, program, script, yaml := filepath.Join(root, "bin"), filepath.Join(root, "bin", "prog"), filepath.Join(root, "script"), filepath.Join(state, "ops.d", "test.yaml")
	definition := func(timeout string) []byte {
		return fmt.Appendf(nil, `provider: test
title: An op that needs an approval
ops:
  test.run:
    summary: Show the script.
    side_effecting: true
    argv: [%s, --, %s]
    fs: {read: [%s]}
    timeout: %s
`, program, script, root, timeout)
	}
	reset := func() {
		t.Helper()
		if err := errors.Join(os.RemoveAll(bin), os.Mkdir(bin, 0o755), os.Chmod(root, 0o755), os.Chmod(bin, 0o755)); err != nil {
			t.Fatal(err)
		}
		write(program, cat, 0o755)
		write(script, []byte("as approved\n"), 0o644)
		write(yaml, definition("20s"), 0o644)
	}
	reset()
	g := serveAlive(t, box, state)
	token := g.agent(t, "scout")
	reload := func() {
		t.Helper()
		if err := g.do(http.MethodPost, "/v1/ops/reload", nil, nil); err != nil {
			t.Fatal(err)
		}
	}

	for _, tc := range []struct {
		name   string
		change func()
		what   string // "" if it is to run
	}{
		{"nothing", func() {}, ""},
		{"the gateway is killed", func() { g.kill(); g = serveAlive(t, box, state) }, ""},
		{"the op file is read again", reload, ""},
		{"the program", func() { write(program, append(slices.Clone(cat), 0), 0o755) }, "program " + program},
		{"the script", func() { write(script, []byte("something else\n"), 0o644) }, "file " + script},
		{"the script is gone", func() { os.Remove(script) }, "file " + script},
		{"a folder of the path", func() {
			other := filepath.Join(root, "other")
			if err := errors.Join(os.Mkdir(other, 0o755), os.Rename(bin, bin+".old"), os.Rename(other, bin)); err != nil {
				t.Fatal(err)
			}
			write(program, append(slices.Clone(cat), 1), 0o755)
			os.RemoveAll(bin + ".old")
		}, "program " + program},
		{"the op's definition", func() { write(yaml, definition("21s"), 0o644); reload() }, "definition"},
		{"the op is gone", func() {
			write(yaml, []byte(strings.ReplaceAll(string(definition("20s")), "test.run", "test.other")), 0o644)
			reload()
		}, "definition"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reset()
			reload()
			var taken struct {
				Call, Approval string
				State          ops.State
			}
			if err := g.as(token, http.MethodPost, "/exec", map[string]any{"op": "test.run"}, &taken); err != nil || taken.State != ops.Parked {
				t.Fatalf("ordered: %+v, %v", taken, err)
			}
			tc.change()
			var answer struct {
				State   string
				Code    ops.Code
				Details struct {
					Changed []struct{ What, Was, Is string }
				}
			}
			err := g.do(http.MethodPost, "/v1/approvals/"+taken.Approval+"/approve", nil, &answer)
			var call struct {
				State     ops.State
				StartedAt string `json:"started_at"`
				Result    struct{ Stdout string }
				Fault     ops.Fault
			}
			until(t, "the call is settled", func() bool {
				if err := g.get("/v1/calls/"+taken.Call, &call); err != nil {
					t.Fatal(err)
				}
				return call.State.Settled()
			})
			if tc.what == "" {
				if err != nil || answer.State != "approved" || call.State != ops.Succeeded || call.Result.Stdout != "as approved\n" {
					t.Errorf("approved: %v, %+v; the call: %+v", err, answer, call)
				}
				return
			}
			if err == nil || answer.Code != ops.ApprovalVoid || call.State != ops.Failed || call.Fault.Code != ops.ApprovalVoid || call.StartedAt != "" {
				t.Fatalf("approved: %v, %+v; the call: %+v", err, answer, call)
			}
			if c := answer.Details.Changed; len(c) == 0 || c[0].What != tc.what || c[0].Was == "" || c[0].Was == c[0].Is {
				t.Errorf("changed: %+v, want %s", c, tc.what)
			}
		})
	}
}
