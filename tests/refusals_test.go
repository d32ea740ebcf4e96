package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"inband/ops"
	"inband/service/access"
	"inband/service/threads"
)

// Law: every entrance refuses the same table. A second entrance that skips the first
// one's check is the classic hole of this field, so each row goes through each.
func TestEveryEntranceRefusesTheSame(t *testing.T) {
	box, state := build(t, ""), filepath.Join(t.TempDir(), "state")
	if out, err := exec.Command(box, "--state", state, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	if err := os.WriteFile(filepath.Join(state, "ops.d", "test.yaml"), fmt.Appendf(nil, `provider: test
title: An op that leaves a trace
ops:
  test.touch:
    summary: Leave a trace.
    side_effecting: true
    params:
      count: {type: int, min: 0, max: 9, doc: A number}
    argv: [/usr/bin/touch, --, %[1]s, {param: count}]
    fs: {write: [%[2]s]}
    examples:
      accept: [{count: 1}]
      reject: [{count: 10}]
  test.never:
    summary: Leave a trace.
    side_effecting: true
    params:
      count: {type: int, min: 0, max: 9, doc: A number}
    argv: [/usr/bin/touch, --, %[1]s, {param: count}]
    fs: {write: [%[2]s]}
`, ran, filepath.Dir(ran)), 0o644); err != nil {
		t.Fatal(err)
	}
	policy := string(access.DefaultPolicyText()) + `
forbid (principal is Agent, action in [Action::"run", Action::"ask"], resource == Op::"test.never");
`
	if err := os.WriteFile(filepath.Join(state, "policy.cedar"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	g := serveAlive(t, box, state)
	token := g.agent(t, "scout")

	// Each entrance returns the code that an order ends in, "" if it was not refused, and
	// parked if it waits for an approval.
	entrances := map[string]func(n int, op, params string) ops.Code{
		"POST /exec": func(n int, op, params string) ops.Code {
			var answer struct {
				Code  ops.Code
				State ops.State
			}
			err := g.as(token, http.MethodPost, "/exec", map[string]any{"op": op, "params": json.RawMessage(params)}, &answer)
			switch {
			case err == nil && answer.State == ops.Parked:
				return parked
			case err == nil:
				return ""
			}
			return answer.Code
		},
		"a bracket directive": func(n int, op, params string) ops.Code {
			return inReply(t, g, token, fmt.Sprintf("b%d", n), fmt.Sprintf("[TOOL %s %s]", op, params))
		},
		"a directive with a key that nobody has": func(n int, op, params string) ops.Code {
			return inReply(t, g, token, fmt.Sprintf("k%d", n), fmt.Sprintf("[TOOL#zzzz-zzzz-zzzz %s %s]", op, params))
		},
		"a tool fence": func(n int, op, params string) ops.Code {
			return inReply(t, g, token, fmt.Sprintf("f%d", n), fmt.Sprintf("```tool\n%s %s\n```", op, params))
		},
		"a call object in an exec fence": func(n int, op, params string) ops.Code {
			return inReply(t, g, token, fmt.Sprintf("o%d", n), fmt.Sprintf("```exec\n{\"op\":%q,\"params\":%s}\n```", op, params))
		},
		"a curl command": func(n int, op, params string) ops.Code {
			return inReply(t, g, token, fmt.Sprintf("c%d", n), fmt.Sprintf("$ curl -d '{\"op\":%q,\"params\":%s}' https://localhost/exec\n", op, params))
		},
		"box exec": func(n int, op, params string) ops.Code {
			cmd := exec.Command(box, "--state", state, "exec", op, "-f", "-", "--json")
			cmd.Env = append(os.Environ(), "INBAND_TOKEN="+token)
			cmd.Stdin = bytes.NewReader([]byte(params))
			out, err := cmd.Output()
			if err == nil {
				return ""
			}
			var answer struct {
				Code  ops.Code
				State ops.State
				Fault struct{ Code ops.Code }
			}
			if json.Unmarshal(out, &answer) != nil {
				t.Errorf("box exec %s %s: %v, stdout %q", op, params, err, out)
			}
			if answer.State == ops.Parked && cmd.ProcessState.ExitCode() == ops.ExitWaiting {
				return parked
			}
			if answer.Fault.Code != "" {
				return answer.Fault.Code
			}
			return answer.Code
		},
	}
	// What has side effects gets less far in some forms of text, whatever else it is.
	acting := map[string]ops.Code{"a curl command": ops.Quotation, "a directive with a key that nobody has": ops.WrongKey}
	for n, tc := range []struct {
		op, params string
		acts       bool
		want       ops.Code
	}{
		{"no.such.op", `{}`, false, ops.UnknownOp},
		{"tools.lst", `{}`, false, ops.UnknownOp},
		{"test.touch", `{"count":1}`, true, parked},
		{"test.touch", `{"count":99}`, true, ops.InvalidParams},
		{"test.never", `{"count":1}`, true, ops.NotPermitted},
		{"test.never", `{"count":99}`, true, ops.NotPermitted},
		{"tools.list", `{"x":1}`, false, ops.InvalidParams},
		{"box.exec", `{}`, false, ops.InvalidParams},
		{"box.exec", `{"action":"reboot"}`, false, ops.InvalidParams},
		{"box.exec", `{"action":7}`, false, ops.InvalidParams},
		{"box.exec", `{"action":"op","arg":"-x"}`, false, ops.InvalidParams},
		{"box.exec", `{"action":"config"}`, false, ops.NotPermitted},
		{"box", `{"action":"reboot"}`, false, ops.InvalidParams},
		{"dm.send", `{"to":"scout"}`, true, ops.InvalidParams},
		{"dm", `{"to":"scout","text":9007199254740993}`, true, ops.IntegerOutOfRange},
		{"dm", `{"to":"nobody-here","text":"x"}`, true, parked},
		{"tools", `{}`, false, ""},
	} {
		for name, enter := range entrances {
			want := tc.want
			if code, ok := acting[name]; ok && tc.acts {
				want = code
			}
			if got := enter(n, tc.op, tc.params); got != want {
				t.Errorf("%s %s by %s: got %q, want %q", tc.op, tc.params, name, got, want)
			}
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a refused op ran")
	}
	// Every entrance has parked two calls, but for those that refuse, and all are listed once.
	var page struct{ Approvals []struct{ Op ops.OpName } }
	if err := g.get("/v1/approvals?state=pending", &page); err != nil || len(page.Approvals) != 2*(len(entrances)-len(acting)) {
		t.Errorf("%d calls wait, %v; want two of each of %d entrances", len(page.Approvals), err, len(entrances)-len(acting))
	}
}

// parked stands among the codes for a call that is not refused and waits for an approval.
const parked ops.Code = "parked"

// inReply hands in a reply with one order and returns the code that its call ends in.
func inReply(t *testing.T, g *gateway, token, message, text string) ops.Code {
	t.Helper()
	var ack threads.Ack
	if err := g.as(token, http.MethodPost, "/v1/replies", map[string]string{"room": "lobby", "message": message, "text": text}, &ack); err != nil {
		t.Errorf("reply %q: %v", text, err)
		return "no reply"
	}
	if len(ack.Calls) != 1 {
		t.Errorf("reply %q: %d calls, want 1", text, len(ack.Calls))
		return "no call"
	}
	var call struct {
		State ops.State
		Fault ops.Fault
	}
	until(t, "the call settles", func() bool {
		if err := g.as(token, http.MethodGet, "/v1/calls/"+string(ack.Calls[0].Call), nil, &call); err != nil {
			t.Fatalf("call of %q: %v", text, err)
		}
		return call.State.Settled() || call.State == ops.Parked
	})
	if call.State == ops.Parked {
		return parked
	}
	return call.Fault.Code
}
