package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"inband/ops"
)

// Cases x15, x16 and x17: what a program starts ends with it, whether it stays in its
// group or leaves it, and one that ends well is not failed for what it left behind.
func TestTreesEnd(t *testing.T) {
	length := func(n int) string { return fmt.Sprintf("%d.%d", 4700+n, os.Getpid()) } // no other sleeps so long
	l := newSite(t, fmt.Sprintf(`provider: test
title: Trees
ops:
  test.tree: {summary: Leave a child in its group., side_effecting: false, timeout: 1s, argv: [/bin/sh, -c, 'sleep %[1]s & sleep %[1]s'], fs: {exec: [/bin, /usr/bin]}}
  test.setsid: {summary: Leave one in a session of its own., side_effecting: false, timeout: 1s, argv: [/bin/sh, -c, 'setsid sleep %[2]s & sleep %[2]s'], fs: {exec: [/bin, /usr/bin]}}
  test.daemon: {summary: Leave one and end well., side_effecting: false, timeout: 5m, argv: [/bin/sh, -c, 'echo started; sleep %[3]s & exit 0'], fs: {exec: [/bin, /usr/bin]}}
`, length(0), length(1), length(2)), "")
	sleepers := func() (n int) {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range all {
			for i := range 3 {
				if b, err := os.ReadFile(path); err == nil && bytes.HasPrefix(b, []byte("sleep\x00"+length(i)+"\x00")) {
					n++
				}
			}
		}
		return n
	}
	for _, op := range []string{"test.tree", "test.setsid"} {
		asked := time.Now()
		status, a := l.ask(l.scout, http.MethodPost, "/exec", map[string]any{"op": op})
		if took := time.Since(asked); status != http.StatusGatewayTimeout || a.Code != ops.TimedOut || took > 20*time.Second { // the case asks for two
			t.Errorf("%s: status %d %s after %v", op, status, a.Code, took)
		}
		if n := sleepers(); n != 0 {
			t.Errorf("%s: %d processes are left", op, n)
		}
	}
	asked := time.Now()
	a := l.send(http.MethodPost, "/exec", `{"op":"test.daemon"}`, bearer(l.scout))
	var done struct {
		State  ops.State
		Result struct {
			Stdout   string
			ExitCode *int     `json:"exit_code"`
			Left     []string `json:"left_behind"`
		}
	}
	if err := json.Unmarshal(a.body, &done); err != nil || done.State != ops.Succeeded || done.Result.Stdout != "started\n" || done.Result.ExitCode == nil || *done.Result.ExitCode != 0 ||
		len(done.Result.Left) != 1 {
		t.Errorf("a descendant that stays: status %d %s (%v)", a.status, a.body, err)
	}
	if took := time.Since(asked); took > 30*time.Second { // the case asks for one; the descendant would sleep for an hour
		t.Errorf("it was answered after %v", took)
	}
	if n := sleepers(); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}
