package tests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"inband/ops"
)

// Who sees, stops and repeats what.

// Case x06: whoever may not see a call sees nothing of it, least of all in a stream that
// is open while it runs, and is not told that it exists.
func TestNobodyElseSeesACall(t *testing.T) {
	l := newSite(t, `provider: test
title: A secret
ops:
  test.secret: {summary: Print a marker., side_effecting: false, argv: [/usr/bin/echo, the-marker]}
`, "")
	_, clerks := l.ask(l.clerk, "POST", "/v1/replies", map[string]string{"room": "lobby", "message": "c1", "text": "[TOOL tools {}]"})
	req, err := http.NewRequestWithContext(t.Context(), "GET", l.url+"/v1/events?after=0&thread="+clerks.Thread, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+l.clerk)
	res, err := l.client.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("clerk's stream: %v, %v", res, err)
	}
	defer res.Body.Close()

	status, mine := l.reply("s1", "[TOOL test.secret {}]")
	if status != http.StatusOK || len(mine.Calls) != 1 {
		t.Fatalf("status %d, %+v", status, mine)
	}
	call := mine.Calls[0].Call
	if a := l.settled(call); a.State != ops.Succeeded {
		t.Fatalf("the call is %s %s", a.State, a.Fault.Code)
	}
	l.quiet()
	for _, path := range []string{"/v1/calls/" + string(call), "/v1/threads/" + mine.Thread, "/v1/events?thread=" + mine.Thread} {
		a, none := l.send("GET", path, "", bearerOnly(l.clerk)), l.send("GET", strings.Replace(strings.Replace(path, string(call), "c-01j00000000000000000000000", 1), mine.Thread, "t-00000000000000000000000000", 1), "", bearerOnly(l.clerk))
		if a.status != http.StatusNotFound || none.status != http.StatusNotFound || bytes.Contains(a.body, []byte("test.secret")) || bytes.Contains(a.body, []byte("the-marker")) {
			t.Errorf("clerk reads %s: status %d %s; one that does not exist: %d", path, a.status, a.body, none.status)
		}
	}
	for _, path := range []string{"/v1/calls", "/v1/calls?op=test.secret", "/v1/threads"} {
		if a := l.send("GET", path, "", bearerOnly(l.clerk)); a.status != http.StatusOK || bytes.Contains(a.body, []byte(call)) || bytes.Contains(a.body, []byte(mine.Thread)) {
			t.Errorf("clerk lists %s: status %d %s", path, a.status, a.body)
		}
	}
	// What clerk's stream has brought when something of clerk's own comes at last.
	if _, last := l.ask(l.clerk, "POST", "/v1/replies", map[string]string{"thread": clerks.Thread, "message": "c2", "text": "the-end"}); last.Reply == "" {
		t.Fatal("no reply")
	}
	var got strings.Builder
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		got.WriteString(lines.Text() + "\n")
		if strings.Count(got.String(), "event: reply.taken\n") > 1 {
			break
		}
	}
	for _, secret := range []string{"the-marker", "test.secret", string(call), mine.Thread, "scout"} {
		if strings.Contains(got.String(), secret) {
			t.Errorf("clerk's stream holds %q:\n%s", secret, got.String())
		}
	}
	if !strings.Contains(got.String(), clerks.Thread) {
		t.Errorf("clerk's stream has nothing of clerk's own:\n%s", got.String())
	}
}

func bearerOnly(token string) map[string]string {
	return map[string]string{"Authorization": "Bearer " + token}
}

// Case x09: only who may cancel a call does, and then all of it is gone; an attempt that
// is refused is known afterwards.
func TestOnlyOnesOwnIsCancelled(t *testing.T) {
	l := newLab(t, filepath.Join(t.TempDir(), "state"))
	status, held := l.orderAs(l.scout, "test.hold", "k1")
	if status != http.StatusAccepted {
		t.Fatalf("status %d %s", status, held.Code)
	}
	until(t, "it has begun", func() bool { return l.begun() == 1 })
	processes := func() (n int) {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range all {
			if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(l.dir+"/test.hold")) {
				n++
			}
		}
		return n
	}
	path := "/v1/calls/" + string(held.Call) + "/cancel"
	if a := l.send("POST", path, "", map[string]string{}); a.status != http.StatusUnauthorized {
		t.Errorf("without a token: status %d", a.status)
	}
	if a := l.send("POST", path, "", bearerOnly(l.clerk)); a.status != http.StatusNotFound {
		t.Errorf("as another agent: status %d", a.status)
	}
	if a := l.call(held.Call); a.State != ops.Running || processes() == 0 {
		t.Fatalf("after attempts that were refused the call is %s with %d processes", a.State, processes())
	}
	asked := time.Now()
	if a := l.send("POST", path, "", bearerOnly(l.scout)); a.status != http.StatusOK {
		t.Errorf("as the one whose it is: status %d %s", a.status, a.body)
	}
	until(t, "its processes are gone", func() bool { return processes() == 0 })
	if took := time.Since(asked); took > 10*time.Second { // the case asks for one
		t.Errorf("they were gone after %v", took)
	}
	if a := l.settled(held.Call); a.State != ops.Cancelled {
		t.Errorf("the call is %s", a.State)
	}
	cancelled := 0
	for _, e := range l.events() {
		if e.Kind == "call.cancel_requested" && e.Stream == "call/"+string(held.Call) {
			cancelled++
		}
	}
	if cancelled != 1 {
		t.Errorf("the call was asked to stop %d times, want 1", cancelled)
	}
	l.kill()
	for _, want := range []string{`"status":401`, `"status":404`, `"path":"` + path + `"`, `"by":"agent/clerk"`} {
		if !strings.Contains(l.log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, l.log)
		}
	}
}

// Case x11: who may run an op and not read what it says is told how it ended, whichever
// way it was run.
func TestOutputIsWithheldEverywhere(t *testing.T) {
	l := newSite(t, `provider: test
title: Something said
ops:
  test.say: {summary: Say it., side_effecting: false, argv: [/bin/sh, -c, 'echo the-marker; echo the-marker >&2']}
  test.fail: {summary: Say it and fail., side_effecting: false, argv: [/bin/sh, -c, 'echo the-marker; echo the-marker >&2; exit 3']}
`, `permit (principal is Operator, action, resource);
permit (principal is Agent, action in [Action::"run", Action::"see", Action::"reply"], resource);
`)
	for op, want := range map[string]struct {
		state ops.State
		code  ops.Code
		exit  string
	}{"test.say": {ops.Succeeded, "", `"exit_code":0`}, "test.fail": {ops.Failed, ops.OpFailed, `"exit_code":3`}} {
		said := func(how string, b []byte) {
			t.Helper()
			if bytes.Contains(b, []byte("the-marker")) {
				t.Errorf("%s, %s: tells what it said: %s", op, how, b)
			}
		}
		body := fmt.Sprintf(`{"op":%q,"id":%q}`, op, op)
		for _, how := range []string{"synchronously", "as a replay"} {
			a := l.send("POST", "/exec", body, bearer(l.scout))
			said(how, a.body)
			if !bytes.Contains(a.body, []byte(`"state":"`+want.state)) || !bytes.Contains(a.body, []byte(want.exit)) ||
				!bytes.Contains(a.body, fmt.Appendf(nil, `"replayed":%v`, how == "as a replay")) {
				t.Errorf("%s, %s: %s", op, how, a.body)
			}
		}
		a := l.send("POST", "/exec", fmt.Sprintf(`{"op":%q,"id":%q}`, op, "async "+op), with(bearer(l.scout), "Prefer", "respond-async"))
		said("asynchronously", a.body)
		var taken answer
		if err := json.Unmarshal(a.body, &taken); err != nil || a.status != http.StatusAccepted {
			t.Fatalf("%s, asynchronously: status %d, %v", op, a.status, err)
		}
		if done := l.settled(taken.Call); done.State != want.state || done.Fault.Code != want.code {
			t.Errorf("%s, asynchronously: %s %s", op, done.State, done.Fault.Code)
		}
		shown := l.send("GET", "/v1/calls/"+string(taken.Call), "", bearerOnly(l.scout))
		said("as a call", shown.body)
		if !bytes.Contains(shown.body, []byte(`"withheld":true`)) {
			t.Errorf("%s, as a call: %s", op, shown.body)
		}
		status, reply := l.reply("say "+op, "[TOOL "+op+" {}]")
		if status != http.StatusOK || len(reply.Calls) != 1 {
			t.Fatalf("reply: status %d %+v", status, reply)
		}
		l.settled(reply.Calls[0].Call)
		l.quiet()
		thread := l.send("GET", "/v1/threads/"+reply.Thread, "", bearerOnly(l.scout))
		said("in its thread", thread.body)
		if !bytes.Contains(thread.body, []byte(op+": "+string(want.state))) {
			t.Errorf("%s: its thread does not say how it ended: %s", op, thread.body)
		}
		req, err := http.NewRequestWithContext(t.Context(), "GET", l.url+"/v1/events?after=0&thread="+reply.Thread, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+l.scout)
		res, err := l.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		stream := new(strings.Builder)
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			stream.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), "outbox.delivered") || strings.Contains(lines.Text(), `"kind":"result"`) {
				break
			}
		}
		res.Body.Close()
		said("in a stream", []byte(stream.String()))
		for _, words := range [][]string{{"exec", op}, {"exec", op, "--json"}, {"exec", op, "--wait"}, {"calls", "show", string(taken.Call)}, {"threads", "show", reply.Thread}} {
			out, errs, _ := l.run(l.scout, "", words...)
			said("box "+strings.Join(words, " "), []byte(out+errs))
		}
		// The operator, who may, reads it.
		if shown := l.send("GET", "/v1/calls/"+string(taken.Call), "", bearerOnly(l.token)); !bytes.Contains(shown.body, []byte("the-marker")) {
			t.Errorf("%s: the operator reads %s", op, shown.body)
		}
	}
}

// Cases x50, x51 and x52: a key is one identity's, whatever its token, and whatever
// happens one key is one execution.
func TestOneKeyIsOneExecution(t *testing.T) {
	t.Run("x50", func(t *testing.T) {
		l := twoOpsSite(t, everything)
		first, second := l.send("POST", "/exec", `{"op":"test.up","id":"k"}`, bearer(l.scout)), l.send("POST", "/exec", `{"op":"test.up","id":"k"}`, bearer(l.clerk))
		var a, b answer
		if json.Unmarshal(first.body, &a) != nil || json.Unmarshal(second.body, &b) != nil || first.status != 200 || second.status != 200 || a.Call == b.Call {
			t.Errorf("scout got %s, and clerk with the same key %s", first.body, second.body)
		}
		if bytes.Contains(second.body, []byte(`"replayed":true`)) || len(l.runs()) != 2 {
			t.Errorf("clerk's call: %s; runs %v", second.body, l.runs())
		}
	})
	t.Run("x51", func(t *testing.T) {
		l := twoOpsSite(t, everything)
		first := l.send("POST", "/exec", `{"op":"test.up","id":"k"}`, bearer(l.scout))
		var made struct{ Token string }
		if err := l.do("POST", "/v1/agents/scout/rotate", nil, &made); err != nil {
			t.Fatal(err)
		}
		if a := l.send("POST", "/exec", `{"op":"test.up","id":"k"}`, bearer(l.scout)); a.status != http.StatusUnauthorized {
			t.Errorf("the token from before: status %d %s", a.status, a.body)
		}
		again := l.send("POST", "/exec", `{"op":"test.up","id":"k"}`, bearer(made.Token))
		var a, b answer
		if json.Unmarshal(first.body, &a) != nil || json.Unmarshal(again.body, &b) != nil || a.Call != b.Call || !bytes.Contains(again.body, []byte(`"replayed":true`)) {
			t.Errorf("got %s, and with the new token %s", first.body, again.body)
		}
		if len(l.runs()) != 1 {
			t.Errorf("it ran %d times", len(l.runs()))
		}
	})
	t.Run("x52", func(t *testing.T) {
		l := newLab(t, filepath.Join(t.TempDir(), "state"))
		var group sync.WaitGroup
		var mu sync.Mutex
		statuses, ids := map[int]int{}, map[ops.CallID]int{}
		for range 16 {
			group.Go(func() {
				a := l.send("POST", "/exec", `{"op":"test.act","id":"k"}`, with(bearer(l.token), "Prefer", "respond-async"))
				var got struct {
					Call    ops.CallID
					Code    ops.Code
					Details struct{ Call ops.CallID }
				}
				if err := json.Unmarshal(a.body, &got); err != nil {
					t.Error(err)
				}
				if got.Call == "" {
					got.Call = got.Details.Call
				}
				mu.Lock()
				statuses[a.status]++
				ids[got.Call]++
				mu.Unlock()
			})
		}
		group.Wait()
		if statuses[http.StatusAccepted] != 1 || statuses[http.StatusConflict] != 15 || len(ids) != 1 {
			t.Errorf("sixteen at once were answered %v, about the calls %v", statuses, ids)
		}
		until(t, "it runs", func() bool { return l.begun() == 1 })
		if a := l.send("POST", "/exec", `{"op":"test.act","id":"k"}`, bearer(l.token)); a.status != http.StatusConflict || !bytes.Contains(a.body, []byte(ops.InProgress)) {
			t.Errorf("the same while it runs: status %d %s", a.status, a.body)
		}
		for _, other := range []string{`{"op":"box","params":{"action":"status"},"id":"k"}`, `{"op":"test.hold","id":"k"}`} {
			if a := l.send("POST", "/exec", other, bearer(l.token)); a.status != http.StatusUnprocessableEntity || !bytes.Contains(a.body, []byte(ops.KeyReused)) {
				t.Errorf("another body: status %d %s", a.status, a.body)
			}
		}
		l.kill()
		l.letGo() // whatever ran on would act now
		l.again()
		for range 2 {
			if status, a := l.ask(l.token, "POST", "/exec", map[string]any{"op": "test.act", "id": "k"}); a.Code != ops.OutcomeUnknown || status != http.StatusConflict {
				t.Errorf("after a crash: status %d %s", status, a.Code)
			}
		}
		if begun, acts := l.begun(), l.lines("acts"); begun != 1 || acts > 1 {
			t.Errorf("it began %d times and acted %d times", begun, acts)
		}
	})
}

// Case x13: what an op prints is data, wherever it goes.
func TestOutputIsData(t *testing.T) {
	l := newSite(t, `provider: test
title: Output that would be a command
ops:
  test.inject: {summary: Print commands., side_effecting: false, argv: [PROGRAM, act, print, '$(touch DIR/pwn)\n"; touch DIR/pwn; #\n`+"`touch DIR/pwn`"+`\n%s%n\x7b\x7b.\x7d\x7d\n']}
`, "")
	want := l.fill("$(touch DIR/pwn)\n\"; touch DIR/pwn; #\n`touch DIR/pwn`\n%s%n{{.}}\n")
	var result struct{ Result struct{ Stdout string } }
	if err := l.as(l.scout, "POST", "/exec", map[string]any{"op": "test.inject"}, &result); err != nil || result.Result.Stdout != want {
		t.Errorf("got %q, %v; want %q", result.Result.Stdout, err, want)
	}
	status, reply := l.reply("m1", "[TOOL test.inject {}]")
	if status != http.StatusOK {
		t.Fatal(status)
	}
	l.quiet()
	l.once(reply.Ack)
	out, errs, code := l.run(l.scout, "[TOOL test.inject {}]", "reply", "--room", "lobby", "--wait", "-")
	if code != 0 || !strings.Contains(out, "touch "+l.dir) {
		t.Errorf("box reply: exit code %d, %q, %q", code, out, errs)
	}
	if out, _, _ := l.run(l.scout, "", "exec", "test.inject"); strings.TrimSpace(out) != strings.TrimSpace(want) {
		t.Errorf("box exec prints %q, want %q", out, want)
	}
	if files := tree(t, l.dir); len(files) != 1 {
		t.Errorf("there are %v", files)
	}
}

// Case x26: what an op prints moves no cursor and rewrites no terminal.
func TestOutputIsShownSafely(t *testing.T) {
	const hostile = "\x1b]0;x\a\x1b[2Jgone\rback\x1b]52;c;cm0=\a\u202eevil\x00\xff\u009b31m"
	l := newSite(t, `provider: test
title: Output for a terminal
ops:
  test.paint: {summary: Print control characters., side_effecting: false, argv: [PROGRAM, act, print, '\x1b]0;x\a\x1b[2Jgone\rback\x1b]52;c;cm0=\a\u202eevil\x00\xff\u009b31m']}
`, "")
	safe := func(where, s string) {
		t.Helper()
		for _, bad := range []string{"\x1b]", "\x1b[2J", "\a", "\u202e", "\x00", "\xff", "\u009b", "gone\r"} {
			if strings.Contains(s, bad) {
				t.Errorf("%s holds %q: %q", where, bad, s)
			}
		}
		if !strings.Contains(s, "evil") {
			t.Errorf("%s does not show what was printed: %q", where, s)
		}
	}
	out, _, code := l.run(l.scout, "", "exec", "test.paint")
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	safe("a pipe", out)
	safe("a terminal", l.onTerminal("exec", "test.paint"))

	out, _, _ = l.run(l.scout, "", "exec", "test.paint", "--json")
	var result struct {
		Result struct {
			Base64 []byte `json:"stdout_base64"`
		}
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || string(result.Result.Base64) != hostile {
		t.Errorf("--json: %v, %q, want %q", err, result.Result.Base64, hostile)
	}
	safe("--json", out)

	status, reply := l.reply("m1", "[TOOL test.paint {}]")
	if status != http.StatusOK {
		t.Fatal(status)
	}
	l.quiet()
	var thread struct {
		Posts []struct{ Kind, Text, Body string }
	}
	if err := l.as(l.scout, "GET", "/v1/threads/"+reply.Thread, nil, &thread); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(thread.Posts, func(p struct{ Kind, Text, Body string }) bool { return p.Kind == "result" }) {
		t.Errorf("no result among %+v", thread.Posts)
	}
	for _, p := range thread.Posts {
		if p.Kind == "result" {
			safe("the thread", p.Text+p.Body)
		}
	}
	out, _, _ = l.run(l.scout, "", "threads", "show", reply.Thread)
	safe("box threads show", out)
	safe("box threads show on a terminal", l.onTerminal("threads", "show", reply.Thread))
}

// onTerminal is what box writes to a terminal.
func (l *lab) onTerminal(words ...string) string {
	l.t.Helper()
	return l.terminal(words, func(cmd *exec.Cmd, tty *os.File) { cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty })
}

// terminal runs box with those of its files on a terminal that attach puts there, and
// returns what it writes to it.
func (l *lab) terminal(words []string, attach func(cmd *exec.Cmd, tty *os.File)) string {
	l.t.Helper()
	terminal, name := openTerminal(l.t)
	tty, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := l.command(l.scout, words...)
	attach(cmd, tty)
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	tty.Close()
	shown := make(chan string)
	go func() {
		b, _ := io.ReadAll(terminal) // an error once box has gone
		shown <- string(b)
	}()
	err = cmd.Wait()
	s := <-shown
	if err != nil {
		l.t.Errorf("box %v on a terminal: %v\n%q", words, err, s)
	}
	return strings.ReplaceAll(s, "\r\n", "\n") // as a terminal ends lines
}
