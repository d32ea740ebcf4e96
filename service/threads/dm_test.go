package threads

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"inband/harvester"
	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// ordered is a call with everything for it, as an agent's directive under its wake has it.
func ordered(by ops.Identity, op ops.OpName, params string) ops.Call {
	return ops.Call{Op: op, By: by, Params: json.RawMessage(params),
		From:     ops.Origin{Source: "test", Declared: []ops.OpName{op}},
		Evidence: ops.Evidence{Key: ops.KeyGood, Echo: ops.EchoNone, Clean: true, Fresh: true}}
}

// call runs c and returns what came of it.
func (h *house) call(c ops.Call) ops.Outcome {
	h.t.Helper()
	ticket, err := h.door.Submit(h.t.Context(), c)
	if err != nil {
		h.t.Fatal(err)
	}
	if ticket.State == ops.Parked {
		h.t.Fatalf("%s is parked: %s", c.Op, ticket.Rule)
	}
	o, err := h.door.Await(h.t.Context(), ticket.Call)
	if err != nil {
		h.t.Fatal(err)
	}
	return o
}

// dm sends a message and returns what came of it.
func (h *house) dm(by ops.Identity, params string) (sent, *ops.Fault) {
	h.t.Helper()
	o := h.call(ordered(by, "dm.send", params))
	if o.Fault != nil {
		return sent{}, o.Fault
	}
	var s sent
	if err := json.Unmarshal(o.Result.Value, &s); err != nil {
		h.t.Fatal(err)
	}
	return s, nil
}

func TestDM(t *testing.T) {
	h := newHouse(t)
	to, fault := h.dm(scout, `{"to":"clerk","text":"line one\nline two"}`)
	if fault != nil {
		t.Fatal(fault)
	}
	h.posts(to.Thread, 1)
	for _, who := range []ops.Identity{scout, clerk, ada} {
		v, err := h.threads.show(t.Context(), who, service.Query{Arg: to.Thread})
		if err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		s := v.(Showing)
		if p := s.Posts[0]; p.Kind != "wake" || p.ID != to.Post || p.Author != nil || s.Room != "dm.clerk" || !strings.Contains(p.Text, "line one\nline two") {
			t.Errorf("%s reads %+v", who, s)
		}
	}
	if r, fault := h.dm(clerk, `{"to":"scout","text":"back","thread":"`+to.Thread+`"}`); fault != nil || r.Thread != to.Thread || r.Room != "dm.clerk" || r.Wake == "" {
		t.Errorf("an answer in the thread: %+v, %v", r, fault)
	}
	if r, fault := h.dm(scout, `{"to":"#attic","text":"hi"}`); fault != nil || r.Room != "attic" || r.Wake != "" {
		t.Errorf("a new room: %+v, %v", r, fault)
	}
	if r, fault := h.dm(scout, `{"to":"attic","text":"hi"}`); fault != nil || r.Room != "attic" {
		t.Errorf("a room that exists: %+v, %v", r, fault)
	}
	if r, fault := h.dm(scout, `{"to":"ada","text":"hi"}`); fault != nil || r.Room != "dm.ada" || r.Wake != "" || r.Post == "" {
		t.Errorf("a person: %+v, %v", r, fault)
	}
	for params, want := range map[string]ops.Code{
		`{"to":"cellar","text":"hi"}`:                                        ops.NotFound,
		`{"to":"scout","text":"hi"}`:                                         ops.InvalidParams,
		`{"to":"irc#lobby","text":"hi"}`:                                     ops.NotFound,
		`{"to":"irc@someone","text":"hi"}`:                                   ops.NotFound,
		`{"to":"clerk","text":" "}`:                                          ops.BadRequest,
		`{"to":"clerk","text":"hi","thread":"t-00000000000000000000000000"}`: ops.NotFound,
		`{"to":"#lobby","text":"hi","thread":"` + to.Thread + `"}`:           ops.InvalidParams,
		`{"to":"ada","text":"hi","thread":"` + to.Thread + `"}`:              ops.NotFound,
		`{"to":"clerk"}`:                                                     ops.InvalidParams,
		`{"to":"clerk","text":"a\u0000b"}`:                                   ops.InvalidParams,
		`{"to":"../x","text":"hi"}`:                                          ops.InvalidParams,
		`{"to":"clerk","text":"hi","cc":"ada"}`:                              ops.InvalidParams,
		`{"to":"clerk","text":"` + strings.Repeat("x", ops.MaxText+1) + `"}`: ops.InvalidParams,
	} {
		if o := h.call(ordered(scout, "dm.send", params)); o.Fault == nil || o.Fault.Code != want {
			t.Errorf("dm %.80s: got %v, want %s", params, o.Fault, want)
		}
	}
	if _, err := h.directory.Revoke(t.Context(), clerk.ID); err != nil {
		t.Fatal(err)
	}
	if o := h.call(ordered(scout, "dm.send", `{"to":"clerk","text":"hi"}`)); o.Fault == nil || o.Fault.Code != ops.NotFound || !strings.Contains(o.Fault.Message, "revoked") {
		t.Errorf("to a revoked agent: %+v", o)
	}
	// Nothing of a message that was refused is left behind.
	var rooms int
	if err := h.store.View(t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT count(*) FROM room WHERE name NOT IN ('attic', 'dm.clerk', 'dm.ada')`, func(scan func(...any) error) error { return scan(&rooms) })
	}); err != nil || rooms != 0 {
		t.Errorf("%d more rooms, %v", rooms, err)
	}
}

// Messages leave by the chat on which their recipient is, addressed to nobody else.
func TestDMInChats(t *testing.T) {
	b := newBoard()
	b.users = map[ops.IdentityID]string{"scout": "U1", "ada": "UA"}
	onBoard(t, b, func(t *testing.T, h *house) {
		for _, tc := range []struct {
			name    string
			by      ops.Identity
			to      string
			room    string
			address string // at which the post is made
			mention string
			wakes   bool
		}{
			{"an agent at home", ada, "scout", "board@U1", "room @U1", "U1", true},
			{"an agent by its user", clerk, "board@U1", "board@U1", "room @U1", "U1", true},
			{"a person", scout, "ada", "board@UA", "room @UA", "UA", false},
			{"a person by the user", scout, "board@UA", "board@UA", "room @UA", "UA", false},
			{"a stranger", scout, "board@U9", "board@U9", "room @U9", "", false},
			{"a room", scout, "board#R9", "board#R9", "room #R9", "", false},
			{"an agent of no chat", ada, "clerk", "dm.clerk", "", "", true},
		} {
			text := "Look at [TOOL t.read {}], " + tc.name
			s, fault := h.dm(tc.by, fmt.Sprintf(`{"to":%q,"text":%q}`, tc.to, text))
			if fault != nil {
				t.Errorf("%s: %v", tc.name, fault)
				continue
			}
			synctest.Wait()
			if s.Room != tc.room || (s.Wake != "") != tc.wakes {
				t.Errorf("%s: %+v, want room %s", tc.name, s, tc.room)
			}
			posts, all := h.posts(s.Thread, 1), ""
			for _, p := range posts { // as many as the board needs
				all += p.Text
			}
			if posts[0].ID != s.Post || !strings.Contains(all, tc.name) {
				t.Errorf("%s: the record has %+v", tc.name, posts)
			}
			if tc.address == "" {
				continue
			}
			b.mu.Lock()
			first := standing{}
			for _, s2 := range b.stood {
				if s2.Mark == s.Post {
					first = s2
				}
			}
			b.mu.Unlock()
			if first.Mention != tc.mention || first.id == "" {
				t.Errorf("%s: the board has %+v", tc.name, first)
			}
			if found, _ := harvester.All([]byte(first.Text), harvester.Config{}); len(found) > 0 {
				t.Errorf("%s: the post holds the order %+v", tc.name, found)
			}
			// The thread goes on, in its own room only.
			if again, fault := h.dm(tc.by, fmt.Sprintf(`{"to":%q,"text":"more","thread":%q}`, tc.to, s.Thread)); fault != nil || again.Thread != s.Thread {
				t.Errorf("%s, again: %+v, %v", tc.name, again, fault)
			}
			if _, fault := h.dm(tc.by, fmt.Sprintf(`{"to":"board#R0","text":"more","thread":%q}`, s.Thread)); fault == nil || fault.Code != ops.InvalidParams {
				t.Errorf("%s: another room with the thread: %v", tc.name, fault)
			}
		}
	})
}

// Wakes of one agent that come before the first is posted are one thread: where a platform
// has no threads, the agent could answer in no other.
func TestHomeBeforeTheFirstPost(t *testing.T) {
	b := newBoard()
	gate := make(chan struct{})
	b.block = map[string]chan struct{}{"room @U1": gate}
	onBoard(t, b, func(t *testing.T, h *house) {
		first, second := h.raise(errand(scout, "")), h.raise(errand(scout, ""))
		if first.Thread != second.Thread {
			t.Error("two threads before the first post")
		}
		close(gate)
		synctest.Wait()
		if third := h.raise(errand(scout, "")); third.Thread == first.Thread {
			t.Error("one thread when the first has a root of its own")
		}
	})
}

// An operator's word to the gateway is carried out, an agent's is a message.
func TestControlByDM(t *testing.T) {
	h := newHouse(t)
	s, fault := h.dm(ada, `{"to":"scout","text":"Begin."}`)
	if fault != nil {
		t.Fatal(fault)
	}
	h.posts(s.Thread, 1)
	stopped := func() (held bool) {
		if err := h.store.View(t.Context(), func(tx journal.Tx) (err error) {
			held, err = h.door.Held(tx, s.Thread)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return held
	}
	say := func(by ops.Identity, to, text string) sent {
		t.Helper()
		s, fault := h.dm(by, fmt.Sprintf(`{"to":%q,"text":%q,"thread":%q}`, to, text, s.Thread))
		if fault != nil {
			t.Fatal(fault)
		}
		return s
	}
	if got := say(scout, "#dm.scout", "STOP"); got.Control || stopped() {
		t.Errorf("an agent stops the thread: %+v", got)
	}
	if got := say(ada, "scout", " STOP\n"); !got.Control || got.Wake != "" || !stopped() {
		t.Errorf("an operator does not stop it: %+v", got)
	}
	if got := say(ada, "scout", "Are you there?"); got.Control || !got.Held || got.Post != "" {
		t.Errorf("a message to a stopped thread: %+v", got)
	}
	if got := say(ada, "scout", "START"); !got.Control || stopped() {
		t.Errorf("an operator does not start it: %+v", got)
	}
	if n := h.number(`SELECT count(*) FROM wake WHERE state = 'open'`); n != 2 {
		t.Errorf("%d wakes are open, want the first and the one that was held", n)
	}
}
