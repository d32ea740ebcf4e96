package threads

import (
	"encoding/json"
	"strings"
	"testing"

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
