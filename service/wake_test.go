package service

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// anything lets agents run everything that the rules let through.
const anything = `@id("all") permit (principal, action, resource) unless { action == Action::"run" && context has op && context.op == "t.ask" };`

// An order with side effects is had by its wake once, in whatever message and spelling.
func TestTheSameOrderOfAWake(t *testing.T) {
	gate, ran := make(chan struct{}), new(atomic.Int64)
	gated := func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		ran.Add(1)
		select {
		case <-gate:
			return fine(ctx, c)
		case <-ctx.Done():
			return ops.Outcome{}, ctx.Err()
		}
	}
	aliased := write("t.write", gated)
	aliased.Op.Aliases = []ops.OpName{"w"}
	h := newHouse(t, aliased, read("t.read", fine), write("t.ask", fine), write("t.quick", fine))
	h.policy(anything)
	submit := func(op ops.OpName, params string, change func(*ops.Call)) Ticket {
		t.Helper()
		c := ordered(op, change)
		c.Params = json.RawMessage(params)
		ticket, err := h.door.Submit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	first := submit("t.write", `{"n":1}`, nil)
	if ticket := submit("w", "{ \"n\" : 1.0 }", func(c *ops.Call) { c.Key = "m-2" }); ticket.Call != first.Call || ticket.Outcome == nil ||
		ticket.Outcome.Fault.Code != ops.InProgress || ticket.Outcome.Fault.Details["call"] != first.Call || ticket.Replayed {
		t.Errorf("while it runs: got %+v, want IN_PROGRESS that names %s", ticket, first.Call)
	}
	rows := h.calls()
	close(gate)
	want := h.await(first.Call)
	if ticket := submit("w", "{ \"n\" : 1.0 }", func(c *ops.Call) { c.Key = "m-2" }); !ticket.Replayed || ticket.Call != first.Call || ticket.Rule != first.Rule ||
		ticket.Outcome == nil || !cmp.Equal(*ticket.Outcome, want) {
		t.Errorf("afterwards: got %+v, want the replay of %+v", ticket, want)
	}
	if n := h.calls(); n != rows || ran.Load() != 1 {
		t.Errorf("%d calls on record, ran %d times; want %d and once", n, ran.Load(), rows)
	}
	// These are other orders.
	for name, ticket := range map[string]Ticket{
		"another parameter": submit("t.write", `{"n":2}`, nil),
		"another op":        submit("t.quick", `{"n":1}`, nil),
		"another wake":      submit("t.write", `{"n":1}`, func(c *ops.Call) { c.From.Wake = "w-2" }),
		"no wake":           submit("t.write", `{"n":1}`, func(c *ops.Call) { c.From.Wake = "" }),
		"an operator":       submit("t.write", `{"n":1}`, func(c *ops.Call) { c.By, c.From.Wake = ada, "" }),
	} {
		if ticket.Replayed || ticket.State != ops.Received {
			t.Errorf("%s: got %+v, want it received", name, ticket)
		}
		h.await(ticket.Call)
	}
	// Without the key it is not known to be of that wake; a person decides.
	if ticket := submit("t.write", `{"n":1}`, func(c *ops.Call) { c.Evidence.Key = ops.KeyMissing }); ticket.Replayed || ticket.State != ops.Parked {
		t.Errorf("without the key: %+v", ticket)
	}
	// A read is answered anew.
	for range 2 {
		if ticket := submit("t.read", `{}`, nil); ticket.Replayed {
			t.Errorf("a read is replayed: %+v", ticket)
		}
	}
	// What waits is not asked for again.
	parked := submit("t.ask", `{}`, nil)
	if again := submit("t.ask", `{}`, nil); parked.Approval == "" || !again.Replayed || again.Approval != parked.Approval || again.Call != parked.Call {
		t.Errorf("asked twice: %+v, then %+v", parked, again)
	}
	if _, err := h.door.Deny(t.Context(), ada, parked.Approval, "no"); err != nil {
		t.Fatal(err)
	}
	if again := submit("t.ask", `{}`, nil); again.Outcome == nil || again.Outcome.Fault.Code != ops.ApprovalDenied {
		t.Errorf("asked again after a denial: %+v", again)
	}
}

// Two of one reply are one order.
func TestTheSameOrderTwiceInAReply(t *testing.T) {
	ran := new(atomic.Int64)
	h := newHouse(t, write("t.write", func(ctx context.Context, c ops.Call) (ops.Outcome, error) { ran.Add(1); return fine(ctx, c) }))
	h.policy(anything)
	orders := []Order{h.door.Prepare(ordered("t.write", nil)), h.door.Prepare(ordered("t.write", nil))}
	var tickets []Ticket
	if err := h.store.Update(t.Context(), func(tx journal.Tx) (err error) { tickets, err = h.door.Admit(tx, orders...); return err }); err != nil {
		t.Fatal(err)
	}
	h.door.Run(tickets...)
	h.await(tickets[0].Call)
	if tickets[1].Call != tickets[0].Call || tickets[1].Outcome == nil || tickets[1].Outcome.Fault.Code != ops.InProgress {
		t.Errorf("the second: %+v, want IN_PROGRESS of %s", tickets[1], tickets[0].Call)
	}
	if ran.Load() != 1 || h.calls() != 1 {
		t.Errorf("ran %d times, %d calls on record", ran.Load(), h.calls())
	}
}

// What was refused, and what did not run and says to order it again, may be ordered again.
func TestTheSameOrderThatDidNotRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	ran := new(atomic.Int64)
	bound := write("t.write", func(ctx context.Context, c ops.Call) (ops.Outcome, error) { ran.Add(1); return fine(ctx, c) })
	h := openHouse(t, path, bound)
	h.people()
	h.policy(anything)
	var tickets []Ticket
	if err := h.store.Update(t.Context(), func(tx journal.Tx) (err error) {
		tickets, err = h.door.Admit(tx, h.door.Prepare(ordered("t.write", func(c *ops.Call) { c.Evidence.Echo = ops.EchoFound })),
			h.door.Prepare(ordered("t.write", nil)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if tickets[0].State != ops.Refused || tickets[1].State != ops.Received {
		t.Fatalf("got %+v", tickets)
	}
	h.close() // before it began
	h = openHouse(t, path, bound)
	h.start()
	defer h.close()
	h.policy(anything)
	if o := h.await(tickets[1].Call); o.Fault == nil || o.Fault.Code != ops.NotStarted {
		t.Fatalf("got %+v", o)
	}
	ticket, err := h.door.Submit(t.Context(), ordered("t.write", nil))
	if err != nil || ticket.Replayed || ticket.State != ops.Received {
		t.Fatalf("ordered again: %+v, %v", ticket, err)
	}
	h.await(ticket.Call)
	again, err := h.door.Submit(t.Context(), ordered("t.write", nil))
	if err != nil || !again.Replayed || again.Call != ticket.Call || ran.Load() != 1 {
		t.Errorf("and once more: %+v, %v, ran %d times", again, err, ran.Load())
	}
}

// A replay takes nothing of a rate, as one by its idempotency key.
func TestTheSameOrderBeyondTheRate(t *testing.T) {
	rated := write("t.write", fine)
	rated.Op.Rate = ops.Rate{Count: 1, Per: time.Hour}
	h := newHouse(t, rated)
	h.policy(anything)
	first, err := h.door.Submit(t.Context(), ordered("t.write", nil))
	if err != nil {
		t.Fatal(err)
	}
	h.await(first.Call)
	if again, err := h.door.Submit(t.Context(), ordered("t.write", nil)); err != nil || !again.Replayed {
		t.Errorf("got %+v, %v, want a replay", again, err)
	}
	_, err = h.door.Submit(t.Context(), ordered("t.write", func(c *ops.Call) { c.Params = json.RawMessage(`{"n":2}`) }))
	if codeOf(err) != ops.RateLimited {
		t.Errorf("another order: %v, want RATE_LIMITED", err)
	}
}

// What an op may run without being asked follows from the errand whose key the order
// carries, also over the API.
func TestDeclaredOps(t *testing.T) {
	h := newHouse(t, write("t.write", fine), write("t.other", fine))
	for _, tc := range []struct {
		name   string
		op     ops.OpName
		change func(*ops.Call)
		want   ops.State
	}{
		{"declared", "t.write", nil, ops.Received},
		{"not declared", "t.other", nil, ops.Parked},
		{"declared, by the API", "t.write", func(c *ops.Call) { c.From.Source = "api/q-1" }, ops.Received},
		{"declared, by the API without its key", "t.write", func(c *ops.Call) {
			c.From.Source, c.From.Wake, c.Evidence = "api/q-1", "", ops.Evidence{}
		}, ops.Parked},
		{"declared, without its key", "t.write", func(c *ops.Call) { c.From.Wake, c.Evidence.Key = "w-3", ops.KeyMissing }, ops.Parked},
	} {
		c := ordered(tc.op, tc.change)
		c.From.Wake += tc.name // each an errand of its own
		ticket, err := h.door.Submit(t.Context(), c)
		if err != nil || ticket.State != tc.want {
			t.Errorf("%s: got %+v, %v, want %s", tc.name, ticket, err, tc.want)
		}
	}
	if l := h.door.List(scout); slices.ContainsFunc(l.Ops, func(o OpListing) bool { return o.Permitted }) {
		t.Errorf("a list has no evidence, and permits %+v", l)
	}
	if !access.DefaultPolicy().Decide(access.Request{By: scout, Action: access.Run, Op: "t.write", SideEffecting: true, WakeDeclared: true}).Allowed {
		t.Error("the default policy does not let agents run what their wake declared")
	}
}
