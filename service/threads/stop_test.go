package threads

import (
	"context"
	"errors"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/journal"
)

// code is the code of the fault in err.
func code(err error) ops.Code {
	var f *ops.Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

// raise wakes an agent.
func (h *house) raise(e Errand) Wake {
	h.t.Helper()
	var w Wake
	if err := h.store.Update(h.t.Context(), func(tx journal.Tx) (err error) {
		w, err = h.threads.Raise(tx, e)
		return err
	}); err != nil {
		h.t.Fatalf("raise %+v: %v", e, err)
	}
	return w
}

// What is stopped says what waits; calls and wakes of other threads go on; what is started
// goes on, each wake once.
func TestHoldAndRelease(t *testing.T) {
	begun := make(chan ops.CallID, 8)
	read := ops.Bound{Op: ops.Op{Name: "test.read", Provider: "test", Summary: "Read."}, Executor: ops.ExecutorFunc(func(_ context.Context, c ops.Call) (ops.Outcome, error) {
		begun <- c.ID
		return ops.Success(ops.NewResult("read", "")), nil
	})}
	for _, scope := range []string{"thread", Everywhere} {
		t.Run(scope, func(t *testing.T) {
			h := newHouse(t, read)
			first := h.raise(Errand{Agent: scout.ID, Cause: ByMessage, Source: "test", By: ada, Name: "ada", Text: "Read."})
			where := scope
			if scope == "thread" {
				where = first.Thread
			}
			got, err := h.threads.Hold(t.Context(), ada, where)
			if want := (Holding{Scope: where, Stopped: true}); err != nil || got != want {
				t.Fatalf("hold: %+v, %v; want %+v", got, err, want)
			}
			ack := h.take(scout, Reply{Agent: scout.ID, Thread: first.Thread, Message: "m1", Text: "[TOOL test.read {}]"})
			second := h.raise(Errand{Agent: scout.ID, Cause: ByMessage, Source: "test", By: ada, Name: "ada", Thread: first.Thread, Text: "Again."})
			if !second.Held || second.Post != "" {
				t.Errorf("a wake in a stopped thread is %+v; want it held", second)
			}
			got, err = h.threads.Hold(t.Context(), ada, where)
			if want := (Holding{Scope: where, Stopped: true, Calls: 1, Wakes: 1}); err != nil || got != want {
				t.Errorf("hold again: %+v, %v; want %+v", got, err, want)
			}
			if other := h.raise(Errand{Agent: clerk.ID, Cause: ByMessage, Source: "test", By: ada, Name: "ada", Text: "Elsewhere."}); other.Held != (scope == Everywhere) {
				t.Errorf("a wake of another thread: held is %t", other.Held)
			}
			select {
			case id := <-begun:
				t.Errorf("%s began while it was stopped", id)
			default:
			}
			got, err = h.threads.Release(t.Context(), ada, where)
			if err != nil || got.Stopped || got.Wakes < 1 {
				t.Errorf("release: %+v, %v; want the wake posted", got, err)
			}
			if id := <-begun; id != ack.Calls[0].Call {
				t.Errorf("%s began; want %s", id, ack.Calls[0].Call)
			}
			// The envelope, the reply, the second envelope, the result.
			wakes := 0
			for _, p := range h.posts(first.Thread, 4) {
				if p.Kind == "wake" {
					wakes++
				}
			}
			if wakes != 2 {
				t.Errorf("%d envelopes, want 2", wakes)
			}
			if got, err := h.threads.Release(t.Context(), ada, where); err != nil || got.Wakes != 0 {
				t.Errorf("release again: %+v, %v", got, err)
			}
		})
	}
}

func TestHoldIsForManagersAndThreads(t *testing.T) {
	h := newHouse(t)
	ack := h.take(scout, Reply{Agent: scout.ID, Room: "lobby", Message: "m1", Text: "hello"})
	for _, c := range []struct {
		name  string
		by    ops.Identity
		scope string
		want  ops.Code
	}{
		{"an agent", scout, ack.Thread, ops.NotPermitted},
		{"an agent, everywhere", scout, Everywhere, ops.NotPermitted},
		{"a bridge", relay, ack.Thread, ops.NotPermitted},
		{"no such thread", ada, NewThreadID(), ops.NotFound},
		{"no id", ada, "lobby", ops.NotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := h.threads.Hold(t.Context(), c.by, c.scope); code(err) != c.want {
				t.Errorf("hold: %v, want %s", err, c.want)
			}
			if _, err := h.threads.Release(t.Context(), c.by, c.scope); code(err) != c.want {
				t.Errorf("release: %v, want %s", err, c.want)
			}
		})
	}
	if holds, err := h.door.Holds(t.Context()); err != nil || len(holds) != 0 {
		t.Errorf("holds: %v, %v; want none", holds, err)
	}
}

// A preview is what a wake's envelope would be, and leaves nothing behind.
func TestPreview(t *testing.T) {
	h := newHouse(t)
	head, err := h.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := Errand{Agent: scout.ID, Cause: ByTimer, Source: "test", Name: "nightly", Text: "Look.", Shown: "a stranger's words", Ops: []ops.OpName{"dm"}}
	p, err := h.threads.Preview(t.Context(), ada, e)
	if err != nil {
		t.Fatal(err)
	}
	if p.Bytes != len(p.Text) || p.Shown == nil || p.Text[p.Shown.Start:p.Shown.End] != e.Shown {
		t.Errorf("%d bytes, shown %+v of\n%s", p.Bytes, p.Shown, p.Text)
	}
	for _, want := range []string{"TOOL#" + PreviewKey + " ", "Look.", "dm.send", "nightly"} {
		if !strings.Contains(p.Text, want) {
			t.Errorf("%q is missing in\n%s", want, p.Text)
		}
	}
	if got, err := h.store.Head(t.Context()); err != nil || got != head {
		t.Errorf("events up to %d, %v; want %d, as before", got, err, head)
	}
	if strings.Trim(PreviewKey, "0-") != "" || strings.ContainsAny(keyAlphabet, "0") {
		t.Errorf("the key of previews, %s, could be one", PreviewKey)
	}
	for _, c := range []struct {
		name string
		by   ops.Identity
		e    Errand
		want ops.Code
	}{
		{"an agent", scout, e, ops.NotPermitted},
		{"nobody there", ada, Errand{Agent: "nobody", Cause: ByMessage, Text: "x"}, ops.NotFound},
		{"an operator", ada, Errand{Agent: ada.ID, Cause: ByMessage, Text: "x"}, ops.NotFound},
		{"an unknown op", ada, Errand{Agent: scout.ID, Cause: ByMessage, Text: "x", Ops: []ops.OpName{"no.such"}}, ops.UnknownOp},
		{"no errand", ada, Errand{Agent: scout.ID, Cause: ByMessage}, ops.BadRequest},
	} {
		if _, err := h.threads.Preview(t.Context(), c.by, c.e); code(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

// A thread says of each envelope what became of its wake, and of each order by which rule
// it ran, was parked or refused.
func TestShowExplains(t *testing.T) {
	write := ops.Bound{Op: ops.Op{Name: "test.write", Provider: "test", Summary: "Write.", SideEffecting: true}, Executor: ops.ExecutorFunc(func(context.Context, ops.Call) (ops.Outcome, error) {
		return ops.Success(ops.NewResult("written", "")), nil
	})}
	h := newHouse(t, write)
	w := h.raise(Errand{Agent: scout.ID, Cause: ByMessage, Source: "test", By: ada, Name: "ada", Text: "Write.", Key: "k7q2-9m", Ops: []ops.OpName{"test.write"}})
	h.posts(w.Thread, 1)
	ack := h.take(scout, Reply{Agent: scout.ID, Thread: w.Thread, Message: "m1",
		Text: "[TOOL#k7q2-9m test.write {}]\n[TOOL test.write {}]\n[TOOL#aaaa-bbbb test.write {}]\n[TOOL no.such {}]\n[RESULT {\"verdict\":\"done\",\"summary\":\"written\"}]"})
	// The envelope, the reply, three results and the note about the parked one.
	posts := h.posts(w.Thread, 6)
	if posts[0].Wake == nil || posts[0].Wake.Wake != w.ID || posts[0].Wake.Agent != scout.ID || posts[0].Wake.Verdict != Done || posts[0].Wake.Summary != "written" {
		t.Errorf("the envelope's wake is %+v", posts[0].Wake)
	}
	if posts[1].ID != ack.Reply || len(posts[1].Calls) != 4 {
		t.Fatalf("the reply has %+v", posts[1].Calls)
	}
	for i, want := range []struct {
		state ops.State
		rule  string
		code  ops.Code
	}{
		{ops.Succeeded, "policy:", ""},
		{ops.Parked, "R4", ""},
		{ops.Refused, "R4", ops.WrongKey},
		{ops.Refused, "registry:", ops.UnknownOp},
	} {
		c := posts[1].Calls[i]
		rule, _, _ := strings.Cut(c.Rule, " ")
		if c.Call != ack.Calls[i].Call || c.State != want.state || rule != want.rule || c.Code != want.code || c.Ordinal != i+1 || (c.Approval != "") != (want.state == ops.Parked) {
			t.Errorf("order %d: %+v, want %+v", i+1, c, want)
		}
		if delivered := c.State != ops.Parked; (c.Delivery == "delivered") != delivered {
			t.Errorf("order %d: delivery is %q", i+1, c.Delivery)
		}
	}
}
