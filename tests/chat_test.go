package tests

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"inband/ops"
	"inband/tests/bridge/bridgetest"
)

// standing is a message as the bridge of the tests keeps it.
type standing struct {
	ID, Root, Text, Mark string
	Own                  bool
}

// chat is a gateway and a bridge, both real processes.
type chat struct {
	t      testing.TB
	g      *gateway
	bridge *bridgetest.Bridge
	state  string
}

func newChat(t testing.TB, args ...string) *chat {
	t.Helper()
	c := &chat{t: t, state: filepath.Join(t.TempDir(), "state")}
	if out, err := exec.Command(build(t, ""), "--state", c.state, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	program, err := bridgetest.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c.bridge = bridgetest.Start(t, program, "", append(args, "-ca", filepath.Join(c.state, "tls", "ca.pem"))...)
	c.g = chatGateway(t, c.state, c.bridge.URL, func(file map[string]any) {
		url := c.bridge.URL
		file["urls"] = map[string]string{"post": url + "/post", "find": url + "/find", "edit": url + "/edit", "history": url + "/history"}
		file["unescape"], file["timeout"], file["poll"] = "html", 2, 10
	})
	c.events()
	return c
}

// events tells the bridge where the gateway is.
func (c *chat) events() {
	c.t.Helper()
	c.bridge.Do(c.t, "events", c.g.url+"/v1/adaptors/chat/events", nil)
}

// restart ends the gateway as a power cut does, and starts it again.
func (c *chat) restart() {
	c.t.Helper()
	c.g.kill()
	c.g = serveAlive(c.t, build(c.t, ""), c.state)
	c.events()
}

// say has ada write, and returns the id of the message.
func (c *chat) say(under, text string) string {
	c.t.Helper()
	var said struct{ ID string }
	c.bridge.Do(c.t, "say", map[string]any{"room": "C1", "under": under, "user": "U2", "name": "Ada", "text": text}, &said)
	return said.ID
}

func (c *chat) room() (all []standing) {
	c.t.Helper()
	c.bridge.Do(c.t, "room", "C1", &all)
	return all
}

// calls returns every call by its source.
func (c *chat) calls() map[string][]ops.CallID {
	c.t.Helper()
	calls, after := map[string][]ops.CallID{}, ""
	for {
		var page struct {
			Calls []struct {
				Call   ops.CallID
				Source string
			}
			Next string
		}
		path := "/v1/calls?limit=200"
		if after != "" {
			path += "&after=" + after
		}
		if err := c.g.get(path, &page); err != nil {
			c.t.Fatal(err)
		}
		for _, call := range page.Calls {
			calls[call.Source] = append(calls[call.Source], call.Call)
		}
		if after = page.Next; after == "" {
			return calls
		}
	}
}

// A day of chat through a bridge that drops, repeats, delays and reorders what it tells,
// breaks off, hangs and refuses what it is sent, while both ends are killed: each order
// runs once, and its result stands once, in the thread that it came from. The journal and
// the bridge's own file say so.
//
// INBAND_CHAT is how many messages are written; the default is the short form.
func TestDayOfChat(t *testing.T) {
	n := 30
	if s := os.Getenv("INBAND_CHAT"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	c := newChat(t)
	var roots, all []string
	for i := range n {
		c.bridge.Do(t, "mood", map[string]int{"drop": r.IntN(2), "duplicate": []int{0, 0, 1, 10}[r.IntN(4)], "reorder": []int{0, 0, 3}[r.IntN(3)]}, nil)
		kinds := []string{"drop", "cut", "error", "too_many", "inside", "no_read"}
		faults := []map[string]any{}
		for range r.IntN(3) {
			kind, of := kinds[r.IntN(len(kinds))], "post"
			if kind == "no_read" {
				of = "find"
			}
			faults = append(faults, map[string]any{"kind": kind, "of": of, "times": 1, "after": 1})
		}
		if r.IntN(20) == 0 {
			faults = append(faults, map[string]any{"kind": "hang", "of": "post", "times": 1})
		}
		c.bridge.Do(t, "fail", faults, nil)
		under := ""
		if len(roots) > 0 && r.IntN(2) == 0 {
			under = roots[r.IntN(len(roots))]
		}
		id := c.say(under, fmt.Sprintf("Look & see %d. [TOOL box.exec {\"action\":\"version\"}]", i))
		all = append(all, id)
		if under == "" {
			roots = append(roots, id)
		}
		switch r.IntN(12) {
		case 0:
			c.restart()
		case 1:
			c.bridge.Restart(t)
			c.events()
		case 2:
			c.bridge.Do(t, "change", map[string]any{"id": all[r.IntN(len(all))], "preview": true}, nil)
		case 3:
			c.bridge.Do(t, "tell", map[string]any{"atonce": true, "ids": []string{id, id, id}}, nil)
		}
	}
	c.bridge.Do(t, "mood", map[string]int{}, nil)
	c.bridge.Do(t, "fail", []int{}, nil)
	c.bridge.Do(t, "mend", nil, nil)
	until(t, "every order has run", func() bool { return len(c.calls()) >= n })
	until(t, "every result is posted", func() bool {
		var outbox struct {
			Outbox []struct{ State, Fault string }
		}
		if err := c.g.get("/v1/outbox", &outbox); err != nil {
			t.Fatal(err)
		}
		for _, o := range outbox.Outbox {
			if o.State == "set_aside" {
				t.Fatalf("set aside: %s", o.Fault)
			}
		}
		return len(outbox.Outbox) == 0
	})
	calls, room := c.calls(), c.room()
	root := map[string]string{}
	marks := map[string]int{}
	for _, m := range room {
		root[m.ID] = m.Root
		if m.Own {
			marks[m.Mark]++
		}
	}
	for mark, n := range marks {
		if n != 1 || mark == "" {
			t.Errorf("the mark %q stands %d times", mark, n)
		}
	}
	if len(calls) != n {
		t.Errorf("%d sources of calls, want %d", len(calls), n)
	}
	for _, id := range all {
		ran := calls["chat/C1/"+id+"#1"]
		if len(ran) != 1 {
			t.Errorf("the order of %s ran %d times", id, len(ran))
			continue
		}
		results := 0
		for _, m := range room {
			if m.Own && strings.Contains(m.Text, "("+string(ran[0])+")") {
				results++
				if m.Root != root[id] {
					t.Errorf("the result of %s stands below %s, want %s", id, m.Root, root[id])
				}
			}
		}
		if results != 1 {
			t.Errorf("the result of %s (%s) stands %d times", id, ran[0], results)
		}
	}
	if t.Failed() {
		t.Logf("the gateway's log:\n%s", c.g.log)
	}
	var verified struct{ OK bool }
	if err := c.g.do(http.MethodPost, "/v1/audit/verify", map[string]string{"checkpoint": ""}, &verified); err != nil || !verified.OK {
		t.Errorf("the journal does not verify: %v", err)
	}
}
