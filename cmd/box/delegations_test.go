package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"inband/ops"
)

// showings are what a gateway says of d-1, one after another, the last one for ever.
type showings struct {
	mu   sync.Mutex
	says []string
	last func() // when the last is asked for
}

func (s *showings) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.URL.Path != "/v1/delegations/d-1" {
		http.Error(w, `{"code":"NOT_FOUND","message":"there is no such thing"}`, http.StatusNotFound)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	say := s.says[0]
	if len(s.says) > 1 {
		s.says = s.says[1:]
	} else if s.last != nil {
		s.last()
	}
	if say == "" { // it goes in the middle of an answer
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusOK)
		panic(http.ErrAbortHandler)
	}
	fmt.Fprint(w, say)
}

const (
	shownOpen      = `{"delegation":"d-1","state":"OPEN","waits":"a worker for default","runs":[{"run":"r-1","attempt":1,"state":"DISPATCHED","progress":0}]}`
	shownRunning   = `{"delegation":"d-1","state":"OPEN","waits":"worker w","runs":[{"run":"r-1","attempt":1,"state":"RUNNING","worker":"w","progress":7}]}`
	shownVerifying = `{"delegation":"d-1","state":"VERIFYING","waits":"a verifier for default","runs":[{"run":"r-1","attempt":1,"state":"SUCCEEDED","worker":"w","progress":7,"summary":"done\u001b[2J"}],` +
		`"verifications":[{"verification":"v-1","n":1,"state":"WAITING"}]}`
	shownDone = `{"delegation":"d-1","state":"COMPLETED","closed":true,"runs":[{"run":"r-1","attempt":1,"state":"SUCCEEDED","worker":"w","progress":7,"summary":"done\u001b[2J"}],` +
		`"verifications":[{"verification":"v-1","n":1,"state":"PASSED","verifier":"j","reason":"looked"}]}`
	shownFailed = `{"delegation":"d-1","state":"EXHAUSTED","closed":true,"reason":"worker_lost","runs":[{"run":"r-1","attempt":1,"state":"EXHAUSTED","class":"worker_lost","reason":"lease_expired","progress":0}]}`
)

func TestWatch(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		says []string
		code int
		out  []string // in this order
		not  string   // not in it
		errs string
	}{
		{"to the end", nil, []string{shownOpen, shownOpen, shownRunning, shownVerifying, shownDone}, 0,
			[]string{"run 1 DISPATCHED", "OPEN, waits for a worker for default", "run 1 RUNNING at w, progress 7", "run 1 SUCCEEDED at w, progress 7, it says: done\\u001b[2J",
				"verification 1 WAITING", "VERIFYING, waits for a verifier", "verification 1 PASSED at j, it says: looked", "COMPLETED"}, "\x1b", ""},
		{"what failed", nil, []string{shownRunning, shownFailed}, ops.ExitFailed, []string{"run 1 EXHAUSTED, worker_lost: lease_expired", "EXHAUSTED: worker_lost"}, "", "box: d-1 ended as EXHAUSTED: worker_lost\n"},
		{"one that has ended", nil, []string{shownDone}, 0, []string{"COMPLETED"}, "waits", ""},
		{"one that there is not", []string{"d-2"}, []string{shownDone}, ops.ExitNotFound, nil, "", "NOT_FOUND"},
		{"a connection that breaks", nil, []string{shownOpen, "", shownRunning, "", shownDone}, 0, []string{"OPEN", "RUNNING", "COMPLETED"}, "", ""},
		{"one document", []string{"--json"}, []string{shownOpen, shownRunning, shownFailed}, ops.ExitFailed, []string{`"state": "EXHAUSTED"`}, "RUNNING", "EXHAUSTED"},
		{"lines", []string{"--jsonl"}, []string{shownOpen, shownOpen, shownRunning, shownDone}, 0, []string{`"OPEN"`, `"RUNNING"`, `"COMPLETED"`}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &showings{says: c.says}
			folder := testFolder(t, s.ServeHTTP)
			var out, errs bytes.Buffer
			args := []string{"--state", string(folder), "delegations", "watch"}
			if len(c.args) == 0 || strings.HasPrefix(c.args[0], "-") {
				args = append(args, "d-1")
			}
			code := newApp(strings.NewReader(""), &out, &errs, func(string) string { return "" }).run(t.Context(), append(args, c.args...))
			if code != c.code || !strings.Contains(errs.String(), c.errs) {
				t.Errorf("exit code %d, want %d; %s", code, c.code, errs.String())
			}
			rest := out.String()
			for _, want := range c.out {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Errorf("%q does not come in its turn in\n%s", want, out.String())
				}
				rest = after
			}
			if c.not != "" && strings.Contains(out.String(), c.not) {
				t.Errorf("%q stands in\n%s", c.not, out.String())
			}
			if c.name == "lines" && strings.Count(out.String(), "\n") != 3 {
				t.Errorf("want three lines, one for each change:\n%s", out.String())
			}
			if c.name == "one document" && !json.Valid(out.Bytes()) {
				t.Errorf("no document:\n%s", out.String())
			}
		})
	}
}

// An interrupt ends the watching and nothing else, and says so.
func TestWatchInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	s := &showings{says: []string{shownOpen, shownRunning}, last: interrupt}
	folder := testFolder(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s: an interrupt changes nothing", r.Method, r.URL.Path)
		}
		s.ServeHTTP(w, r)
	})
	var out, errs bytes.Buffer
	code := newApp(strings.NewReader(""), &out, &errs, func(string) string { return "" }).run(ctx, []string{"--state", string(folder), "delegations", "watch", "d-1"})
	if want := "box: the work goes on: box delegations watch d-1\n"; code != ops.ExitInterrupted || errs.String() != want {
		t.Errorf("exit code %d, %q; want %d and %q", code, errs.String(), ops.ExitInterrupted, want)
	}
}

// What cannot be meant is refused before anybody is asked.
func TestPlaneUsage(t *testing.T) {
	folder := testFolder(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s was asked", r.Method, r.URL.Path) })
	for _, line := range []string{
		"delegations resolve", "delegations resolve d-1", "delegations resolve d-1 forget", "delegations resolve d-1 fail again",
		"delegations resolve d-1 fail --answer yes", "delegations resolve d-1 --mutation k", "delegations resolve d-1 --mutation k --done",
		"delegations resolve d-1 --mutation k --done --absent --proof p", "delegations resolve d-1 --done", "delegations resolve d-1 resume --proof p",
		"delegations cancel", "delegations cancel d-1 --grace -1s", "delegations cancel d-1 --grace soon", "delegations watch", "delegations watch d-1 d-2",
		"delegations retry", "delegations show", "delegations forget", "delegations --limit -1",
		"workers invite", "workers invite a b", "workers invite a --ttl -1h", "workers revoke", "workers drain", "workers show", "workers fire w",
		"plane up", "plane on now", "plane fence-term now", "plane fence-term bump now", "plane status --json --jsonl",
	} {
		var out, errs bytes.Buffer
		code := newApp(strings.NewReader(""), &out, &errs, func(string) string { return "" }).run(t.Context(), append([]string{"--state", string(folder)}, strings.Fields(line)...))
		if code != ops.ExitUsage || !strings.Contains(errs.String(), "--help") {
			t.Errorf("box %s: exit code %d, %s", line, code, errs.String())
		}
	}
}
